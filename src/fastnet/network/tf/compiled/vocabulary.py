"""Which of TensorFlow's operations XLA runs to the same end, and which it runs to another one."""

from __future__ import annotations

__all__ = [
    "CALLS",
    "COLLECTIVE",
    "NUMBERED",
    "PYTHON",
    "RANDOM",
    "READING",
    "SAME",
    "SEEDED",
    "WATCHED",
]


def _named(text: str) -> frozenset[str]:
    return frozenset(text.split())


SAME = _named(
    """
    Const Identity IdentityN NoOp Placeholder PlaceholderWithDefault PreventGradient Snapshot
    StopGradient EnsureShape

    BroadcastArgs BroadcastGradientArgs BroadcastTo Concat ConcatV2 ConcatOffset DynamicStitch
    ExpandDims Fill InvertPermutation MatrixBandPart MirrorPad MirrorPadGrad OneHot OnesLike Pack
    Pad PadV2 Range Rank Reshape ReverseV2 Select SelectV2 Shape ShapeN Size SpaceToBatchND
    BatchToSpaceND Split SplitV Squeeze Tile Transpose Unpack ZerosLike

    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh Ceil Cos Cosh DivNoNan Elu
    Erfc Exp Expm1 Floor IsFinite IsInf IsNan LeakyRelu LeakyReluGrad Log Log1p Mul
    MulNoNan Neg Reciprocal ReciprocalGrad Relu ReluGrad Rint Round Rsqrt RsqrtGrad
    Selu Sigmoid SigmoidGrad Sign Sin Sinh Softplus Softsign SoftsignGrad Sqrt
    SqrtGrad Square SquaredDifference Sub Tan Tanh TanhGrad Xdivy Xlog1py Xlogy

    Equal Greater GreaterEqual Less LessEqual LogicalAnd LogicalNot LogicalOr NotEqual

    All Any Cumprod Cumsum L2Loss Mean Prod Sum

    AvgPool AvgPool3D AvgPool3DGrad AvgPoolGrad BatchMatMul BatchMatMulV2 BatchMatMulV3 BiasAdd
    BiasAddGrad Conv2D Conv2DBackpropFilter Conv2DBackpropInput Conv3D Conv3DBackpropFilterV2
    Conv3DBackpropInputV2 DepthwiseConv2dNative DepthwiseConv2dNativeBackpropFilter
    DepthwiseConv2dNativeBackpropInput Einsum FusedBatchNormGradV3 FusedBatchNormV3 LogSoftmax
    MatMul MaxPool MaxPool3D MaxPool3DGrad MaxPoolGrad ResizeBilinear ResizeNearestNeighbor
    SoftmaxCrossEntropyWithLogits

    AssignAddVariableOp AssignSubVariableOp AssignVariableOp ReadVariableOp VariableShape
    ResourceApplyAdagradV2 ResourceApplyAdam ResourceApplyGradientDescent
    ResourceApplyKerasMomentum ResourceApplyMomentum ResourceApplyRMSProp
    """
)
"""What gives the same up to rounding, for whatever values: a test runs each of them both ways."""

WATCHED = _named(
    """
    ArgMax ArgMin Assert Cast CheckNumerics CheckNumericsV2 ClipByValue Div EluGrad Erf FloorDiv
    FloorMod GatherV2 Max Maximum Min Minimum Mod Pow RealDiv Relu6 Relu6Grad
    ResourceGather SeluGrad Softmax SparseSoftmaxCrossEntropyWithLogits TruncateDiv
    TruncateMod UnsortedSegmentSum
    """
)
"""What gives the same for most values, and for the others makes a graph raise, or differs."""

NUMBERED = {"Slice": (1, 2), "StridedSlice": (1, 2, 3), "StridedSliceGrad": (0, 1, 2, 3)}
"""What takes a piece, with its inputs that say which: one outside is no error in XLA."""

CALLS = _named(
    "Case If PartitionedCall StatefulPartitionedCall StatelessCase StatelessIf StatelessWhile While"
)
"""What runs other graphs."""

COLLECTIVE = "Collective"
"""How the names of operations begin in which devices wait for each other."""

SEEDED = _named(
    """
    StatelessRandomGetAlg StatelessRandomGetKeyCounter StatelessRandomGetKeyCounterAlg
    StatelessRandomNormal StatelessRandomNormalV2 StatelessRandomUniform StatelessRandomUniformInt
    StatelessRandomUniformIntV2 StatelessRandomUniformV2 StatelessTruncatedNormal
    StatelessTruncatedNormalV2
    """
)
"""What draws random numbers by a seed that it is given: other numbers than in a graph."""

RANDOM = _named(
    """
    Multinomial ParameterizedTruncatedNormal RandomGamma RandomPoisson RandomPoissonV2 RandomShuffle
    RandomStandardNormal RandomUniform RandomUniformInt TruncatedNormal
    """
)
"""What draws random numbers from a generator of its own: XLA has none that a seed sets."""

PYTHON = _named("EagerPyFunc PyFunc PyFuncStateless")
"""What calls Python in each step."""

READING = _named("ReadVariableOp ResourceGather VariableShape")
"""What takes a variable and leaves it as it is."""

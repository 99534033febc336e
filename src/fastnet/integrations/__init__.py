"""fastnet inside of other libraries; each is imported only by the module that is named after it."""

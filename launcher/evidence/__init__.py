"""Who died first, and of what: facts from the kernel and the driver, and one sentence made of them."""

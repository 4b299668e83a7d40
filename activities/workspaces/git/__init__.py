"""Git for checkpoints: finding a workspace's repository, running git in a shadow of it, keeping files as commits."""

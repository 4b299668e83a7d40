"""Git under a loop: finding a workspace's repository, running git in a shadow of it, keeping checkpoints as commits."""

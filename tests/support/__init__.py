"""What tests of several rooms share: servers and processes beside the test's own."""

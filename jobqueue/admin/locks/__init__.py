"""What locks do now and have done, and the lists of lease locks and of mutexes. All of it only shows."""

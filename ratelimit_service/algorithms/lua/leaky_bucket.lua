-- leaky_bucket: see leaky_bucket.py. Expects the table `level`. No redis.call here.

return level.of("b")

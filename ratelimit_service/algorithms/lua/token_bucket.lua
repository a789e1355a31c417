-- token_bucket: see token_bucket.py. Expects the table `level`. No redis.call here.

return level.of("t")

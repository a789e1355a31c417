-- leaky_bucket: see leaky_bucket.py. Expects the table `level`. No redis.call here.

local MARK = "b"

local leaky_bucket = {}

function leaky_bucket.charge(state, now, addend, measure)
  return level.charge(MARK, state, now, addend, measure)
end

function leaky_bucket.refund(state, now, addend, measure, _, receipt)
  return level.refund(MARK, state, now, addend, measure, receipt)
end

return leaky_bucket

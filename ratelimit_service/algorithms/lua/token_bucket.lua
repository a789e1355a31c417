-- token_bucket: see token_bucket.py. Expects the table `level`. No redis.call here.

local MARK = "t"

local token_bucket = {}

function token_bucket.charge(state, now, addend, measure)
  return level.charge(MARK, state, now, addend, measure)
end

function token_bucket.refund(state, now, addend, measure, _, receipt)
  return level.refund(MARK, state, now, addend, measure, receipt)
end

return token_bucket

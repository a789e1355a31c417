-- concurrency: the same arithmetic as concurrency.py; see there. A state is a string, or false
-- for a new counter. No redis.call here.

local HEAD = 5
local SIZE = 20
local ID_AT = 12
local LEASE = ">dI4c8"
local ID_SIZE = 8
local ONE_OF_SEVERAL = ">I4c8"

local function read(state, now, window)
  local leases = { packed = "", total = 0, last = 0, now = now, window = window }
  if
    not (
      type(state) == "string"
      and #state > HEAD
      and string.sub(state, 1, 1) == "c"
      and (#state - HEAD) % SIZE == 0
    )
  then
    return leases
  end
  local last = struct.unpack(">d", state, #state - SIZE + 1)
  if last - now >= window then
    leases.damaged = true
    return leases
  end
  leases.now, leases.last = math.max(now, last), last
  local total, at = struct.unpack(">I4", state, 2), HEAD + 1
  while at <= #state do
    local time, hits = struct.unpack(">dI4", state, at)
    if time + window > leases.now then
      break
    end
    total, at = total - hits, at + SIZE
  end
  leases.packed, leases.total = string.sub(state, at), total
  return leases
end

local function state_of(leases)
  return struct.pack(">c1I4", "c", leases.total) .. leases.packed
end

local function find(leases, lease, at)
  if lease == "" then
    return at <= #leases.packed and at or nil
  end
  local found = string.find(leases.packed, lease, at, true)
  while found and (found - 1) % SIZE ~= ID_AT do
    found = string.find(leases.packed, lease, found + 1, true)
  end
  return found and found - ID_AT
end

local function add_several(leases, several, limit)
  local added, taken, at = {}, 0, 1
  while at <= #several do
    local hits, lease
    hits, lease, at = struct.unpack(ONE_OF_SEVERAL, several, at)
    if leases.total + hits <= limit then
      added[#added + 1] = struct.pack(LEASE, leases.now, hits, lease)
      leases.total = leases.total + hits
      taken = taken + hits
    end
  end
  if taken > 0 then
    leases.packed, leases.last = leases.packed .. table.concat(added), leases.now
  end
  return taken
end

local function give_back(leases, hits, lease)
  local rest, at = hits, find(leases, lease, 1)
  while rest > 0 and at do
    local time, held, name = struct.unpack(LEASE, leases.packed, at)
    local given = math.min(held, rest)
    local kept = held > given and struct.pack(LEASE, time, held - given, name) or ""
    leases.packed = string.sub(leases.packed, 1, at - 1) .. kept .. string.sub(leases.packed, at + SIZE)
    rest = rest - given
    at = find(leases, lease, at)
  end
  leases.total = leases.total - hits + rest
  if leases.packed ~= "" then
    leases.last = struct.unpack(">d", leases.packed, #leases.packed - SIZE + 1)
  end
  return hits - rest
end

local function until_left(leases, most, now)
  local ends, at, total = now, 1, leases.total
  while total > most do
    local time, hits = struct.unpack(">dI4", leases.packed, at)
    ends, at, total = time + leases.window, at + SIZE, total - hits
  end
  return ends - now
end

local function reset(leases, now)
  return leases.total > 0 and leases.last + leases.window - now or 0
end

local concurrency = {}

function concurrency.charge(state, now, addend, spec, _, lease)
  local limit, leases = spec.limit, read(state, now, spec.window)
  if #lease > ID_SIZE then
    local taken = add_several(leases, lease, limit)
    return {
      passed = true,
      state = taken > 0 and state_of(leases) or state,
      remaining = math.max(0, limit - leases.total),
      reset = reset(leases, now),
      retry = 0,
      counted = taken,
      damaged = leases.damaged,
    }
  end
  local remaining = limit - leases.total
  local passed, retry = addend <= remaining, 0
  if not passed then
    retry = addend <= limit and until_left(leases, limit - addend, now) or spec.window
  elseif addend > 0 then
    leases.packed = leases.packed .. struct.pack(LEASE, leases.now, addend, lease)
    leases.total, leases.last = leases.total + addend, leases.now
    state = state_of(leases)
  end
  return {
    passed = passed,
    state = state,
    remaining = passed and remaining - addend or math.max(0, remaining),
    reset = reset(leases, now),
    retry = retry,
    counted = passed and addend or 0,
    damaged = leases.damaged,
  }
end

function concurrency.refund(state, now, addend, spec, lease)
  local leases = read(state, now, spec.window)
  local given_back = addend > 0 and give_back(leases, addend, lease) or 0
  if given_back > 0 then
    state = state_of(leases)
  end
  return {
    passed = true,
    state = state,
    remaining = math.max(0, spec.limit - leases.total),
    reset = reset(leases, now),
    retry = 0,
    counted = given_back,
    damaged = leases.damaged,
  }
end

return concurrency

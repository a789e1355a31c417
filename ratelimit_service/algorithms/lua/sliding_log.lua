-- sliding_log: the same arithmetic as sliding_log.py; see there. A state is a string, or false
-- for a new counter. No redis.call here.

local MAX_BYTES = 65536
local HEAD = 25
local GROUP = 128

local function varint(number)
  local coded = {}
  while number >= GROUP do
    coded[#coded + 1] = number % GROUP + GROUP
    number = math.floor(number / GROUP)
  end
  coded[#coded + 1] = number
  return string.char(unpack(coded))
end

local function varint_at(coded, at)
  local number, weight = 0, 1
  local byte = string.byte(coded, at)
  while byte >= GROUP do
    number = number + (byte - GROUP) * weight
    weight = weight * GROUP
    at = at + 1
    byte = string.byte(coded, at)
  end
  return number + byte * weight, at + 1
end

local function entry(since, hits)
  if hits == 1 then
    return varint(since * 2)
  end
  return varint(since * 2 + 1) .. varint(hits)
end

local function entry_at(entries, at)
  local since, after = varint_at(entries, at)
  local hits = 1
  if since % 2 == 1 then
    hits, after = varint_at(entries, after)
  end
  return math.floor(since / 2), hits, after
end

local function read(state, now, window)
  local log = { base = now, last = now, total = 0, entries = "" }
  if not (type(state) == "string" and #state > HEAD and string.sub(state, 1, 1) == "l") then
    return log
  end
  local base, last, total = struct.unpack(">ddd", state, 2)
  if last - now >= window then
    log.damaged = true
    return log
  end
  local gone, at = math.max(now, last) - window, HEAD + 1
  while at <= #state do
    local since, hits, after = entry_at(state, at)
    if base + since > gone then
      return { base = base, last = last, total = total, entries = string.sub(state, at) }
    end
    base, total, at = base + since, total - hits, after
  end
  return log
end

local function state_of(log)
  return struct.pack(">c1ddd", "l", log.base, log.last, log.total) .. log.entries
end

local function listed(log)
  local found, time, at = {}, log.base, 1
  while at <= #log.entries do
    local since, hits, after = entry_at(log.entries, at)
    time, at = time + since, after
    found[#found + 1] = { time = time, hits = hits }
  end
  return found
end

local function packed(base, found)
  local entries, last, total = {}, base, 0
  for place, each in ipairs(found) do
    entries[place] = entry(each.time - last, each.hits)
    last, total = each.time, total + each.hits
  end
  return { base = base, last = last, total = total, entries = table.concat(entries) }
end

local function with(log, now, addend)
  if #log.entries >= MAX_BYTES then
    local found = listed(log)
    local newest = found[#found]
    newest.time, newest.hits = now, newest.hits + addend
    return packed(log.base, found)
  end
  local base, last = now, now
  if log.total > 0 then
    base, last = log.base, log.last
  end
  local entries = log.entries .. entry(now - last, addend)
  return { base = base, last = now, total = log.total + addend, entries = entries }
end

local function reset(log, now, window)
  return log.total > 0 and log.last + window - now or 0
end

local function retry(log, now, addend, measure)
  if addend > measure.limit then
    return measure.window
  end
  local excess, time, at = log.total + addend - measure.limit, log.base, 1
  while excess > 0 do
    local since, hits, after = entry_at(log.entries, at)
    excess, time, at = excess - hits, time + since, after
  end
  return time + measure.window - now
end

local sliding_log = {}

function sliding_log.charge(state, now, addend, measure, force)
  local limit, window = measure.limit, measure.window
  local log = read(state, now, window)
  local damaged, before, counted = log.damaged, log.total, 0
  local passed = before + addend <= limit
  local wait = passed and 0 or retry(log, now, addend, measure)
  if addend > 0 and (passed or force) then
    counted = addend
    log = with(log, before > 0 and math.max(now, log.last) or now, addend)
    state = state_of(log)
  end
  return {
    passed = passed,
    state = state,
    left = passed and limit - before - addend or math.max(0, limit - before),
    reset = reset(log, now, window),
    retry = wait,
    counted = counted,
    damaged = damaged,
  }
end

function sliding_log.refund(state, now, addend, measure)
  local log = read(state, now, measure.window)
  local damaged, given_back = log.damaged, math.min(addend, log.total)
  if given_back > 0 then
    local found, rest = listed(log), given_back
    while rest > 0 do
      local newest = found[#found]
      local taken = math.min(newest.hits, rest)
      newest.hits, rest = newest.hits - taken, rest - taken
      if newest.hits == 0 then
        found[#found] = nil
      end
    end
    log = packed(log.base, found)
    state = state_of(log)
  end
  return {
    passed = true,
    state = state,
    left = math.max(0, measure.limit - log.total),
    reset = reset(log, now, measure.window),
    retry = 0,
    counted = given_back,
    damaged = damaged,
  }
end

return sliding_log

-- Dead letters: what was given up for good, with its payload. Needs the fixed keys in (to keep one), dlq, stat.

local OLDEST_A_CALL = 8

-- Takes one out; returns how many bytes are kept then.
local function take_letter(letter)
  local fields = letter[2]
  redis.call('XDEL', K_dlq, letter[1])
  return redis.call('HINCRBY', K_stat, 'dlq_bytes', -(#fields[2] + #fields[4] + #fields[6]))
end

-- Above `max_bytes` the oldest go, this one too where it is too large by itself.
local function keep_letter(rid, payload, outcome, max_bytes)
  -- An empty stream holds none, whoever emptied it.
  if redis.call('XLEN', K_dlq) == 0 then redis.call('HSET', K_stat, 'dlq_bytes', 0) end
  redis.call('XADD', K_dlq, '*', 'i', rid, 'p', payload, 'o', outcome)
  local bytes = redis.call('HINCRBY', K_stat, 'dlq_bytes', #rid + #payload + #outcome)
  for _ = 1, OLDEST_A_CALL do
    if bytes <= max_bytes then break end
    bytes = take_letter(redis.call('XRANGE', K_dlq, '-', '+', 'COUNT', 1)[1])
  end
end

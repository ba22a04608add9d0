-- Putting a request where claim finds it. Needs the fixed keys ready:0..2, later, bell.

local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}

local function ring(now) redis.call('ZADD', K_bell, int(now), 'w') end

-- L before its time, else Q at the tag that it was given when it came.
local function make_ready(rid, rec, now)
  if rec[R_NB] > now then
    rec[R_ST] = 'L'
    redis.call('ZADD', K_later, int(rec[R_NB]), rid)
  else
    rec[R_ST] = 'Q'
    redis.call('ZADD', LANES[rec[R_LN]], real(rec[R_TAG]), rid)
  end
end

-- Where claim finds a request, and putting it there. Goes with numbers; needs the fixed keys ready:0..2, ready:R and
-- ready:S for places, later and tags for putting.

local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}

-- How many are certain to be claimed before its lane is, near enough: the lanes' boosts only shift who is next. And its
-- rank in the lane, or false where it waits elsewhere.
local function ahead_of(rid, rec)
  local ahead = redis.call('ZCARD', K_ready_R) + redis.call('ZCARD', K_ready_S)
  for l = 0, rec[R_LN] - 1 do ahead = ahead + redis.call('ZCARD', LANES[l]) end
  return ahead, redis.call('ZRANK', LANES[rec[R_LN]], rid)
end

-- Start-time fair queueing inside a lane: the tag is where the tenant's virtual time stands.
local function next_tag(lane, tenant, tokens, weight)
  local virtual, own = 'v' .. lane, 'f' .. lane .. ':' .. tenant
  local tag = math.max(time_of(virtual), time_of(own))
  move_time(own, tag + tokens / weight)
  return tag
end

-- L before its time, else Q. It has its tag from when it first gets there: a tenant is charged for what may run, and
-- what waited long for another request or for its time does not pass all that came meanwhile. Where the set is none any
-- more, all else goes its way, its caller hears of it, and its time in the queue ends it.
local function make_ready(rid, rec, now)
  if rec[R_NB] > now then
    rec[R_ST] = 'L'
    write('ZADD', K_later, {rec[R_NB], rid})
  else
    rec[R_ST] = 'Q'
    if rec[R_TAG] < 0 then rec[R_TAG] = next_tag(rec[R_LN], rec[R_TN], rec[R_TK], rec[R_WT]) end
    write('ZADD', LANES[rec[R_LN]], {rec[R_TAG], rid})
  end
end

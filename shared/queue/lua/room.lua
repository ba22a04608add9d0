-- How full the queue is, in requests and reserved tokens, of all tenants and of one. Needs the fixed key ten.

-- Takes room for n requests of `tokens` in all. Replies nil and how many are live now; where that breaks a cap (0 is
-- none), its name and how many there were.
local function take_room(tenant, n, tokens, caps)
  local fields = {'r', 't', 'r:' .. tenant, 't:' .. tenant}
  local names = {'requests', 'tokens', 'tenant_requests', 'tenant_tokens'}
  local have, more = redis.call('HMGET', K_ten, unpack(fields)), {n, tokens, n, tokens}
  local want = {}
  for i = 1, 4 do
    local sum = (tonumber(have[i]) or 0) + more[i]
    if caps[i] > 0 and sum > caps[i] then return names[i], tonumber(have[1]) or 0 end
    want[2 * i - 1], want[2 * i] = fields[i], int(sum)
  end
  redis.call('HSET', K_ten, unpack(want))
  return nil, (tonumber(have[1]) or 0) + n
end

-- Gives it back; a tenant with nothing live is forgotten.
local function give_room(tenant, n, tokens)
  local r, t = 'r:' .. tenant, 't:' .. tenant
  local have = redis.call('HMGET', K_ten, 'r', 't', r, t)
  local function less(i, by) return int((tonumber(have[i]) or 0) - by) end
  if (tonumber(have[3]) or 0) <= n then
    redis.call('HSET', K_ten, 'r', less(1, n), 't', less(2, tokens))
    redis.call('HDEL', K_ten, r, t)
  else
    redis.call('HSET', K_ten, 'r', less(1, n), 't', less(2, tokens), r, less(3, n), t, less(4, tokens))
  end
end

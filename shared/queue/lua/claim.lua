-- claim: hand a worker up to n requests; each gets a lease and a token that fences everything it does.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S lease when tags bell wk flags stat
-- ARGV: now wid seq n bytes lease_ms idle slots
-- Replies: {verdict, paused, suspects, ready, solo, {rid, token, remaining_ms, grants, crashes, attempts, apis, payload}...}
--          verdict OK, or STALE for a late copy of an older claim; solo 1: these are suspects, run nothing beside them
-- Moves: Q to R. A second run with the same seq gives the same grants again.
-- FLAGS: allow-oom
-- USES: prelude
local now, _, _, _, is_paused = queue_now()
local wid, seq, n, bytes_left = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local lease_ms, is_idle, slots = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
local LANES = {[0] = K_ready_0, [1] = K_ready_1, [2] = K_ready_2}
local BOOST_MS = {[0] = 30000, [1] = 10000, [2] = 0}
local reply = {'OK', 0, 0, 0, 0}

-- Per set: the ids that were fetched of it, where these are all, and how many of them were taken out.
local fetched, gone = {}, {}

local function fetch(set, most)
  local ids = redis.call('ZRANGE', set, 0, most - 1)
  if #ids < most then fetched[set] = #ids end
  return ids
end

local function left_in(set)
  return fetched[set] and fetched[set] - (gone[set] or 0) or redis.call('ZCARD', set)
end

local function finish_reply()
  reply[3] = left_in(K_ready_S)
  reply[4] = left_in(K_ready_R) + left_in(K_ready_0) + left_in(K_ready_1) + left_in(K_ready_2)
  return reply
end

local function grant(rid, rec, payload)
  local until_ms = rec[R_DL]
  reply[#reply + 1] = {rid, rec[R_TOK], until_ms - now, rec[R_GR], rec[R_CR], rec[R_AT], table.concat(rec[R_APIS], ','), payload}
end

local function payload_of(rec)
  local entry = redis.call('XRANGE', K_in, rec[R_EI], rec[R_EI])[1]
  return entry and entry[2][4] or nil
end

local last = redis.call('HGET', K_wk, 'c:' .. wid)
if last then
  last = cmsgpack.unpack(last)
  if seq < last[1] then
    reply[1] = 'STALE'
    return reply
  end
  if seq == last[1] then
    for i = 2, #last do
      local rec = load_record(last[i])
      if rec and rec[R_ST] == 'R' and rec[R_W] == wid and string.find(rec[R_TOK], seq .. '-', 1, true) == 1 then
        local payload = payload_of(rec)
        if payload then grant(last[i], rec, payload) end
        if rec[R_CR] > 0 then reply[5] = 1 end
      end
    end
    return finish_reply()
  end
end

if is_paused then
  reply[2] = 1
  redis.call('HSET', K_wk, 'c:' .. wid, cmsgpack.pack({seq}))
  return finish_reply()
end

local taken = {seq}
local fence

local function remove(rid, set)
  redis.call('ZREM', set, rid)
  gone[set] = (gone[set] or 0) + 1
end

-- False once the byte budget is used up: the request stays where it is.
local function take(rid, rec, set)
  local payload = payload_of(rec)
  if not payload then
    -- Somebody removed the entry: the request cannot run, so it is handed to the sweep to be ended.
    remove(rid, set)
    rec[R_ST] = 'K'
    add_event(rec, 'dead', 'payload_lost')
    save_record(rid, rec)
    redis.call('ZADD', K_when, int(now), rid)
    return true
  end
  if #payload > bytes_left and #taken > 1 then return false end
  bytes_left = bytes_left - #payload
  remove(rid, set)
  rec[R_ST], rec[R_W], rec[R_ST0], rec[R_CT] = 'R', wid, 0, now
  fence = fence or int(redis.call('HINCRBY', K_stat, 'fence', 1))
  rec[R_TOK] = seq .. '-' .. fence
  rec[R_GR] = rec[R_GR] + 1
  add_event(rec, 'claimed', wid)
  save_record(rid, rec)
  redis.call('ZADD', K_lease, int(now + lease_ms), rid)
  redis.call('ZADD', K_when, int(rec[R_DL] + 2000), rid)
  taken[#taken + 1] = rid
  grant(rid, rec, payload)
  return true
end

local function is_over(rec) return rec[R_DL] <= now or rec[R_QT] <= now end

if is_idle then
  for _, rid in ipairs(fetch(K_ready_S, math.max(1, math.floor(slots / 4)))) do
    local rec = load_record(rid)
    if rec and not is_over(rec) then
      local alone = rec[R_CR] >= 2
      if alone and #taken > 1 then break end
      take(rid, rec, K_ready_S)
      if alone then break end
    end
  end
  if #taken > 1 then reply[5] = 1 end
end

if reply[5] == 0 then
  for _, rid in ipairs(fetch(K_ready_R, n + 256)) do
    if #taken > n then break end
    local rec = load_record(rid)
    if rec and rec[R_DL] > now and not take(rid, rec, K_ready_R) then break end
  end
  -- The three lanes' heads are merged by submit time less boost; inside a lane the tag orders.
  local heads, at, recs, virtual = {}, {1, 1, [0] = 1}, {}, {}
  for l = 0, 2 do heads[l] = fetch(LANES[l], n + 256) end
  local function head(l)
    while true do
      local rid = heads[l][at[l]]
      if not rid then return nil end
      if recs[rid] == nil then recs[rid] = load_record(rid) or false end
      if recs[rid] and not is_over(recs[rid]) then return rid end
      at[l] = at[l] + 1
    end
  end
  while #taken <= n do
    local best, best_at
    for l = 0, 2 do
      local rid = head(l)
      if rid and (not best or recs[rid][R_T0] - BOOST_MS[l] < best_at) then
        best, best_at = l, recs[rid][R_T0] - BOOST_MS[l]
      end
    end
    if not best then break end
    local rid = heads[best][at[best]]
    if not take(rid, recs[rid], LANES[best]) then break end
    virtual[best] = recs[rid][R_TAG]
    at[best] = at[best] + 1
  end
  -- Never back: a request that is tried again still has the tag of its first time.
  for l, tag in pairs(virtual) do
    local v = tonumber(redis.call('HGET', K_tags, 'v' .. l)) or 0
    if tag > v then redis.call('HSET', K_tags, 'v' .. l, real(tag)) end
  end
end

redis.call('HSET', K_wk, 'c:' .. wid, cmsgpack.pack(taken))
finish_reply()
-- The bell is a single marker: who took all it could and left some rings for the next worker.
if #taken > n and reply[4] > 0 then redis.call('ZADD', K_bell, int(now), 'w') end
return reply

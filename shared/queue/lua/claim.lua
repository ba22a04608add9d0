-- claim: hand a worker up to n requests; each gets a lease and a token that fences everything it does.
-- KEYS: in live ready:0 ready:1 ready:2 ready:R ready:S lease when tags bell wk flags stat apis
-- ARGV: now wid seq n bytes lease_ms idle slots
-- Replies: {verdict, paused, suspects, ready, solo, {rid, token, remaining_ms, grants, crashes, attempts, apis, payload}...}
--          verdict OK, or STALE for a late copy of an older claim; suspects: how many wait for an idle worker, told to
--          such a one and to one busy worker at a time, which holds the quarantine mark for 30 s from its last claim;
--          solo 1: these are suspects, run nothing beside them
-- Moves: Q to R, or to K where its caller's api has gone or its entry. A second run with the same seq gives the same
--        grants again. Besides the n it looks at no more than 256 that are over or gone and 64 of a later release.
-- FLAGS: allow-oom
-- USES: prelude numbers ready readers
local now, _, _, _, is_paused = queue_now()
local wid, seq, n, bytes_left = ARGV[2], tonumber(ARGV[3]), math.min(tonumber(ARGV[4]), 1024), tonumber(ARGV[5])
local lease_ms, is_idle, slots = tonumber(ARGV[6]), ARGV[7] == '1', tonumber(ARGV[8])
local BOOST_MS = {[0] = 30000, [1] = 10000, [2] = 0}
local OVER_MAX, NEWER_MAX, PAGE_MAX, QUARANTINE_MS = 256, 64, 64, 30000
local reply = {'OK', 0, 0, 0, 0}

-- Suspects wait until a worker is idle. One busy worker at a time is told of them, so that not all empty themselves.
local function told_of(suspects)
  if suspects == 0 or is_idle then return suspects end
  local mark = redis.call('HGET', K_flags, 'quarantine') or ''
  local holder, till = string.match(mark, '^(.+) (%d+)$')
  if holder and holder ~= wid and tonumber(till) > now then return 0 end
  redis.call('HSET', K_flags, 'quarantine', wid .. ' ' .. int(now + QUARANTINE_MS))
  return suspects
end

-- The sets that were read to their end: how many are left in them.
local left = {}

local function left_in(set) return left[set] or redis.call('ZCARD', set) end

local function finish_reply()
  reply[3] = told_of(left_in(K_ready_S))
  reply[4] = left_in(K_ready_R) + left_in(K_ready_0) + left_in(K_ready_1) + left_in(K_ready_2)
  return reply
end

local function grant(rid, rec, payload)
  reply[#reply + 1] = {rid, rec[R_TOK], rec[R_DL] - now, rec[R_GR], rec[R_CR], rec[R_AT], table.concat(rec[R_APIS], ','),
    payload}
end

if is_paused then reply[2] = 1 end
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
  redis.call('HSET', K_wk, 'c:' .. wid, cmsgpack.pack({seq}))
  return finish_reply()
end

-- What this claim does, written at its end in a few commands: the cost of a grant is mostly their number.
local taken, granted, leases, dues = {seq}, {}, {}, {}
local n_over, n_newer, fence = 0, 0, nil

-- One ready set from its head on, its records read with it a page at a time. What leaves it stays until the end, so
-- that places hold.
local walks = {}

local function walk(set)
  local w = {set = set, page = math.min(n + 1, PAGE_MAX), seen = 0, at = 0, length = 0}
  walks[#walks + 1] = w
  return w
end

local function turn_page(w)
  if w.is_all then return false end
  w.ids = redis.call('ZRANGE', w.set, w.seen, w.seen + w.page - 1)
  w.length = #w.ids
  w.is_all = w.length < w.page
  w.seen, w.at, w.page = w.seen + w.length, 1, PAGE_MAX
  if w.length == 0 then return false end
  w.raw = redis.call('HMGET', K_live, unpack(w.ids))
  return true
end

local function leave(w)
  w.gone = w.gone or {}
  w.gone[#w.gone + 1] = w.rid
  w.rec = nil
end

-- Goes on to the next that may run; false at the end, or where enough was looked at.
local function seek(w)
  if w.rec then return true end
  while n_over < OVER_MAX and n_newer < NEWER_MAX do
    w.at = w.at + 1
    if w.at > w.length and not turn_page(w) then return false end
    local rec, why
    w.rid = w.ids[w.at]
    if w.raw[w.at] then rec, why = parse_record(w.raw[w.at]) end
    if why == 'NEWER' then
      n_newer = n_newer + 1
    elseif rec and rec[R_ST] == 'Q' then
      if rec[R_DL] > now and rec[R_QT] > now then
        w.rec = rec
        return true
      end
      -- Over: it stays for the sweep.
      n_over = n_over + 1
    else
      -- Nothing that could be granted has this id.
      if why == 'BAD' then redis.call('ZADD', K_when, now, w.rid) end
      n_over = n_over + 1
      leave(w)
    end
  end
  return false
end

-- The one that was sought. False once the bytes are used up: it stays where it is.
local function take(w)
  local rid, rec = w.rid, w.rec
  if is_abandoned(rec, now) then
    n_over = n_over + 1
    leave(w)
    abandon(rid, rec, now)
    return true
  end
  local payload = payload_of(rec)
  if not payload then
    -- Somebody removed the entry: the request cannot run, so it is handed to the sweep to be ended.
    n_over = n_over + 1
    leave(w)
    rec[R_ST] = 'K'
    add_event(rec, 'dead', 'payload_lost')
    save_record(rid, rec)
    redis.call('ZADD', K_when, now, rid)
    return true
  end
  if #payload > bytes_left and #taken > 1 then return false end
  bytes_left = bytes_left - #payload
  leave(w)
  rec[R_ST], rec[R_W], rec[R_ST0], rec[R_CT] = 'R', wid, 0, now
  fence = fence or int(redis.call('HINCRBY', K_stat, 'fence', 1))
  rec[R_TOK] = seq .. '-' .. fence
  rec[R_GR] = rec[R_GR] + 1
  add_event(rec, 'claimed', wid)
  granted[rid] = rec
  local i = 2 * #taken
  leases[i - 1], leases[i] = now + lease_ms, rid
  dues[i - 1], dues[i] = rec[R_DL] + 2000, rid
  taken[#taken + 1] = rid
  grant(rid, rec, payload)
  return true
end

-- With nothing beside them: after one crash at most a quarter of the slots at once, after two alone.
local function take_suspects()
  local w, most = walk(K_ready_S), math.min(n, math.max(1, math.floor(slots / 4)))
  while #taken <= most and seek(w) do
    local is_alone = w.rec[R_CR] >= 2
    if is_alone and #taken > 1 or not take(w) then break end
    if is_alone and #taken > 1 then break end
  end
  if #taken > 1 then reply[5] = 1 end
end

local function take_released()
  local w = walk(K_ready_R)
  while #taken <= n and seek(w) and take(w) do end
end

-- The three lanes' heads are merged by submit time less boost; inside a lane the tag orders.
local function take_lanes()
  local lanes, virtual = {[0] = walk(LANES[0]), walk(LANES[1]), walk(LANES[2])}, {}
  while #taken <= n do
    local best, best_at
    for l = 0, 2 do
      if seek(lanes[l]) then
        local at = lanes[l].rec[R_T0] - BOOST_MS[l]
        if not best or at < best_at then best, best_at = l, at end
      end
    end
    if not best then break end
    local tag = lanes[best].rec[R_TAG]
    if not take(lanes[best]) then break end
    virtual[best] = tag
  end
  -- Never back: a request that is tried again still has the tag of its first time.
  for l, tag in pairs(virtual) do
    local field = 'v' .. l
    if tag > time_of(field) then move_time(field, tag) end
  end
end

if n > 0 then
  if is_idle then take_suspects() end
  if reply[5] == 0 then
    take_released()
    take_lanes()
  end
end
if #taken > 1 then
  redis.call('ZADD', K_lease, unpack(leases))
  redis.call('ZADD', K_when, unpack(dues))
  -- Only now: a record that says R and has no lease would never be taken back.
  for rid, rec in pairs(granted) do save_record(rid, rec) end
end
for _, w in ipairs(walks) do
  local gone = w.gone or {}
  if #gone > 0 then redis.call('ZREM', w.set, unpack(gone)) end
  if w.is_all then left[w.set] = w.seen - #gone end
end
redis.call('HSET', K_wk, 'c:' .. wid, cmsgpack.pack(taken))
finish_reply()
-- The bell is a single marker: who took all it could and left some rings for the next worker.
if #taken > 1 and (#taken > n or reply[5] == 1) and reply[4] > 0 then ring() end
return reply

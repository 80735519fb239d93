-- The month as task numbers: task 1 was sent 30 days ago, task 1,000,000 just now.
SELECT setseed(0.5);

CREATE FUNCTION pg_temp.sent(n bigint) RETURNS timestamptz STABLE LANGUAGE sql
RETURN now() - interval '30 days' * (1 - n / 1e6) - interval '1 second';

-- A UUIDv7 of that time; the mark keeps the ids of different kinds of rows apart.
CREATE FUNCTION pg_temp.key(n bigint, mark text) RETURNS uuid STABLE LANGUAGE sql
RETURN (
    lpad(to_hex((extract(epoch FROM pg_temp.sent(n)) * 1000)::bigint), 12, '0')
    || '7' || lpad(to_hex(n & 4095), 3, '0') || '8' || substr(md5(n || mark), 1, 15)
)::uuid;

-- Seconds from a log-normal distribution.
CREATE FUNCTION pg_temp.seconds(median float, spread float) RETURNS interval VOLATILE LANGUAGE sql
RETURN median * exp(spread * sqrt(-2 * ln(1 - random())) * cos(2 * pi() * random())) * interval '1 second';

CREATE FUNCTION pg_temp.worker(n bigint) RETURNS text IMMUTABLE LANGUAGE sql
RETURN 'web-' || n || '-' || md5(n::text);

CREATE FUNCTION pg_temp.code(n bigint) RETURNS text IMMUTABLE LANGUAGE sql
RETURN CASE WHEN n % 3 = 0 THEN 'UNHANDLED_EXCEPTION' WHEN n % 7 = 0 THEN 'WORKER_CRASHED'
    WHEN n % 11 = 0 THEN 'TIMED_OUT' ELSE 'SHOP_ERROR_' || n / 50 % 60 END;

CREATE FUNCTION pg_temp.location(task text) RETURNS text IMMUTABLE LANGUAGE sql
RETURN 'shop.' || split_part(task, '.', 2) || '.clients.send';

CREATE FUNCTION pg_temp.fingerprint(code text, location text) RETURNS text IMMUTABLE LANGUAGE sql
RETURN substr(encode(sha256(convert_to('shop.errors.Refused|' || code || '|' || location, 'UTF8')), 'hex'), 1, 12);

CREATE FUNCTION pg_temp.stack(n bigint) RETURNS text IMMUTABLE LANGUAGE sql
RETURN 'Traceback (most recent call last):' || repeat(
    E'\n  File "/srv/shop/orders/' || md5(n::text) || E'.py", line 117, in send\n    connection.send(message)', 6
) || E'\nshop.errors.Refused: the server said ' || n;

-- A UUIDv7 of any time.
CREATE FUNCTION pg_temp.key_at(moment timestamptz, mark text) RETURNS uuid IMMUTABLE LANGUAGE sql
RETURN (
    lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7' || substr(md5(mark || 'a'), 1, 3)
    || '8' || substr(md5(mark), 1, 15)
)::uuid;

-- The bucket of a histogram for some seconds.
CREATE FUNCTION pg_temp.bucket(seconds numeric) RETURNS int IMMUTABLE LANGUAGE sql
RETURN ceil(2 * log(2, seconds / 0.001));

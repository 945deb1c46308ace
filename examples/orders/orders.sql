CREATE STREAM orders (id BIGINT, customer STRING, amount DOUBLE, ts TIMESTAMP)
  TIME ts LATENESS 1 MINUTE FROM 'orders/*.csv';
CREATE STREAM payments (order_id BIGINT, method STRING, ts TIMESTAMP)
  TIME ts LATENESS 1 MINUTE FROM 'payments/*.csv';
CREATE STREAM shipments (order_id BIGINT, carrier STRING, ts TIMESTAMP)
  TIME ts LATENESS 1 MINUTE FROM 'shipments/*.csv';

-- Orders that were paid for and shipped, all within ten minutes of the order.
CREATE QUERY fulfilled AS
SELECT o.id, o.customer, o.amount, p.method, s.carrier, s.ts AS shipped
FROM orders [RANGE 10 MINUTES] AS o, payments [RANGE 10 MINUTES] AS p, shipments [RANGE 10 MINUTES] AS s
WHERE o.id = p.order_id AND o.id = s.order_id;

-- Every five minutes: what the orders of the last five minutes that were paid for come to, by method of payment.
CREATE QUERY paid AS
SELECT RESULT_TIME AS at, p.method, COUNT(*) AS orders, SUM(o.amount) AS amount
FROM orders [RANGE 5 MINUTES] AS o, payments [RANGE 5 MINUTES] AS p
WHERE o.id = p.order_id
GROUP BY p.method
SLIDE 5 MINUTES;

-- What one user has, the last change first: the rows that the service answers with, without its
-- filters. The driver says how many `users` there are.
\set user random(1, :users)
SELECT stock_keeping_unit, status, version, quantity, expires_at, updated_at
FROM entitlement.entitlements
WHERE user_id = 'user-' || :user::text
ORDER BY updated_at DESC, stock_keeping_unit DESC
LIMIT 1001;

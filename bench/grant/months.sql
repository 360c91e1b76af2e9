-- Months for the audit, as upkeep makes them where workers run: from the one of 31 days ago to the
-- one in 31 days.
DO $$
DECLARE
    first_day timestamptz;
BEGIN
    FOR first_day IN
        SELECT generate_series(
            date_trunc('month', now() - interval '31 days'),
            date_trunc('month', now() + interval '31 days'),
            interval '1 month'
        )
    LOOP
        EXECUTE format(
            'CREATE TABLE entitlement.entitlement_audit_m%s
             PARTITION OF entitlement.entitlement_audit FOR VALUES FROM (%L) TO (%L)',
            to_char(first_day, 'YYYYMM'), first_day, first_day + interval '1 month'
        );
    END LOOP;
END
$$;

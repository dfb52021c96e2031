-- The table of product events, in the shape of the reference system, and rows for it. Every value
-- follows from the row's number, so any two loads of one size are equal.
--
-- {table} is the table, {total} the number of rows of the whole load, {first} and {count} the slice.

CREATE TABLE {table}
(
    uuid UUID,
    event String,
    properties String,
    timestamp DateTime64(6, 'UTC'),
    team_id Int64,
    distinct_id String,
    elements_chain String,
    created_at DateTime64(6, 'UTC'),
    person_id UUID,
    person_created_at DateTime64(3),
    person_properties String,
    group0_properties String,
    group1_properties String,
    group2_properties String,
    group3_properties String,
    group4_properties String,
    group0_created_at DateTime64(3),
    group1_created_at DateTime64(3),
    group2_created_at DateTime64(3),
    group3_created_at DateTime64(3),
    group4_created_at DateTime64(3),
    person_mode Enum8('full' = 0, 'propertyless' = 1, 'force_upgrade' = 2),
    _timestamp DateTime,
    _offset UInt64,
    inserted_at Nullable(DateTime64(6, 'UTC')) DEFAULT now64()
)
ENGINE = ReplacingMergeTree(_timestamp)
PARTITION BY toYYYYMM(timestamp)
ORDER BY (team_id, toDate(timestamp), event, cityHash64(distinct_id), cityHash64(uuid))
COMMENT '{comment}';

INSERT INTO {table}
WITH
    cityHash64(number, 'row') AS h,
    cityHash64(number, 'more') AS g,
    -- The smaller of two draws: some people are far busier than others.
    least(h % 200000, g % 200000) AS person,
    cityHash64(person, 'person') AS p,
    [
        '$pageview', '$pageleave', '$autocapture', '$identify', '$rageclick', '$feature_flag_called',
        '$web_vitals', '$exception', '$groupidentify', '$set', 'signed_up', 'logged_in', 'logged_out',
        'invited_member', 'accepted_invite', 'created_project', 'deleted_project', 'created_dashboard',
        'viewed_dashboard', 'shared_dashboard', 'created_insight', 'saved_insight', 'ran_query',
        'exported_data', 'uploaded_file', 'downloaded_file', 'searched', 'filtered_results',
        'added_to_cart', 'removed_from_cart', 'started_checkout', 'completed_purchase',
        'refunded_purchase', 'upgraded_plan', 'downgraded_plan', 'opened_email', 'clicked_email',
        'played_video', 'sent_message', 'viewed_preview_日本'
    ] AS events,
    ['Chrome', 'Safari', 'Firefox', 'Microsoft Edge', 'Opera'] AS browsers,
    ['Mac OS X', 'Windows', 'Linux', 'iOS', 'Android'] AS systems,
    ['Berlin', 'München', 'São Paulo', '東京', 'New York', 'Kraków', 'Montréal', 'London', 'Zürich', 'Reykjavík'] AS cities,
    ['DE', 'DE', 'BR', 'JP', 'US', 'PL', 'CA', 'GB', 'CH', 'IS'] AS countries,
    ['home', 'pricing', 'docs', 'blog', 'insights', 'dashboard', 'settings', 'billing'] AS pages,
    ['free', 'starter', 'pro', 'enterprise'] AS plans,
    ['Ada', 'Grace', 'José', 'Zoë', '李', 'Søren', 'Amélie', 'Max'] AS names,
    1 + p % 10 AS place,
    pages[1 + g % 8] AS page,
    -- Squared, so that the first names are the most frequent ones.
    events[1 + intDiv((h % 1000) * (h % 1000), 25000)] AS name,
    toInt64(1767225600000000) + intDiv(number * 86400000000, {total}) AS inserted,
    -- Most events arrive within two minutes, a few are days late.
    inserted - if(intDiv(h, 1000) % 500 = 0, g % (toInt64(3) * 86400000000), g % 120000000) AS happened
SELECT
    reinterpret(sipHash128('event', number), 'UUID') AS uuid,
    name AS event,
    concat(
        '{"$lib":"web","$lib_version":"1.', toString(90 + h % 20), '.', toString(g % 10),
        '","$browser":"', browsers[1 + p % 5], '","$browser_version":', toString(100 + p % 31),
        ',"$os":"', systems[1 + intDiv(p, 7) % 5],
        '","$current_url":"https://app.example.com/', page, '/', toString(h % 5000), '?tab=', toString(g % 7),
        '","$pathname":"/', page, '/', toString(h % 5000),
        '","$session_id":"', lower(hex(cityHash64(person, intDiv(number, 50000)))),
        '","$screen_width":', toString(1280 + (p % 9) * 160), ',"$screen_height":', toString(720 + (p % 9) * 90),
        ',"$geoip_city_name":"', cities[place], '","$geoip_country_code":"', countries[place],
        '","$ip":"10.', toString(p % 256), '.', toString(intDiv(p, 256) % 256), '.', toString(intDiv(p, 65536) % 256),
        '","duration_ms":', toString(h % 30000), ',"price":', toString((g % 100000) / 100),
        if(intDiv(h, 1000) % 20 = 0, concat(',"note":"line\\nbreak, \\"quotes\\" and \\\\ for ', names[1 + g % 8], ' ✓"'), ''),
        if(intDiv(h, 1000) % 5 = 1, concat(',"$set":{"plan":"', plans[1 + g % 4], '"}'), ''),
        if(intDiv(h, 1000) % 50 = 1, concat(',"$set_once":{"first_page":"', page, '"}'), ''),
        '}'
    ) AS properties,
    fromUnixTimestamp64Micro(happened, 'UTC') AS timestamp,
    1 AS team_id,
    concat('user-', lower(hex(p)), '-', toString(person)) AS distinct_id,
    if(name = '$autocapture',
        concat('button.primary:attr__class="primary"nth-child="', toString(1 + h % 9), '"text="', page, '";div:nth-child="2"'),
        '') AS elements_chain,
    fromUnixTimestamp64Micro(least(inserted, happened + 250000 + h % 700000), 'UTC') AS created_at,
    reinterpret(sipHash128('person', person), 'UUID') AS person_id,
    fromUnixTimestamp64Milli(toInt64(1735689600000) + toInt64(p % 31536000000)) AS person_created_at,
    concat(
        '{"email":"', lower(hex(p)), '@example.com","name":"', names[1 + intDiv(p, 3) % 8], ' ', toString(person),
        '","plan":"', plans[1 + intDiv(p, 11) % 4], '","$geoip_city_name":"', cities[place],
        '","$initial_referrer":"https://www.example.org/', pages[1 + intDiv(p, 5) % 8], '","seats":', toString(p % 500), '}'
    ) AS person_properties,
    '' AS group0_properties,
    '' AS group1_properties,
    '' AS group2_properties,
    '' AS group3_properties,
    '' AS group4_properties,
    toDateTime64(0, 3) AS group0_created_at,
    toDateTime64(0, 3) AS group1_created_at,
    toDateTime64(0, 3) AS group2_created_at,
    toDateTime64(0, 3) AS group3_created_at,
    toDateTime64(0, 3) AS group4_created_at,
    if(h % 10 = 9, 'propertyless', 'full') AS person_mode,
    toDateTime(intDiv(inserted, 1000000)) AS _timestamp,
    number AS _offset,
    fromUnixTimestamp64Micro(inserted, 'UTC') AS inserted_at
FROM numbers({first}, {count});

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::fuzz::fuzz;

const EXPORT: &str = include_str!("../../../../examples/events.yaml");
const WORDS: [&[u8]; 12] =
    [b"${HOME}", b"${", b"&a ", b"*a", b"!!binary ", b"? ", b"- ", b"{", b"]", b"0x7fffffffffffffff", b"\n\t", b"<<: "];

#[test]
fn broken_configuration_is_an_error_and_never_a_panic() {
    let connections = "version: 1\nclickhouse:\n  main: {url: 'https://h:8443', user: u, password: '${PASSWORD}', idle_timeout: 90s}\n\
                       s3:\n  lake: {endpoint_url: 'https://s3', region: r, access_key_id: a, secret_access_key: '${KEY}'}\n";
    let export = "version: 1\nname: a\ninterval: every 5 minutes\ntimezone: Europe/Berlin\nsource:\n  model: sql\n  query: SELECT 1 WHERE now() > {interval_end}\n\
                  \x20 settings: {max_threads: 4}\ndestination:\n  bucket: b\n  prefix: 'a/{year}'\n  file_format: Parquet\n  compression: zstd\npipeline: {memory_limit: 512MiB, consumers: 2}\n";
    let corpus = [connections, export, EXPORT].map(|text| text.as_bytes().to_vec());
    let variables =
        BTreeMap::from([("PASSWORD", "p"), ("KEY", "k")].map(|(name, value)| (name.to_owned(), value.to_owned())));
    let read_file = |_: &Path| -> std::io::Result<String> { Ok("SELECT 1".to_owned()) };
    let surroundings = || Surroundings { variables: &variables, read_file: &read_file };
    let known = super::connections("connections.yaml", connections, surroundings()).expect("valid");
    fuzz("configuration", &corpus, &WORDS, |bytes| {
        let text = String::from_utf8_lossy(bytes);
        let as_connections = super::connections("connections.yaml", &text, surroundings());
        let as_export = super::export("export.yaml", &text, &known, 2, surroundings());
        // What it says of a fault is made, too.
        let _said =
            (as_connections.err().map(|faults| faults.to_string()), as_export.err().map(|faults| faults.to_string()));
    });
}

//! Configuration template of a gateway. Its placeholders are `{{listen}}`, `{{admin}}`, `{{engines
//! GROUP}}` (a list of URLs) and `{{key TENANT}}` (an entry of `keys`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use penstock::config::keys::{self, NewKey};
use penstock::sim::rng::Rng;

/// What is filled in.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    pub(crate) listen: &'a str,
    pub(crate) admin: &'a str,
    pub(crate) engines: &'a BTreeMap<String, Vec<String>>,
    pub(crate) keys: &'a BTreeMap<String, NewKey>,
}

/// A key for each tenant. They open nothing but the gateways of this run.
pub(crate) fn keys_for(tenants: &[String]) -> BTreeMap<String, NewKey> {
    let make = |(number, name): (usize, &String)| {
        let mut rng = Rng::new(number as u64);
        let mut bytes = [0; keys::RANDOM_BYTES];
        bytes.iter_mut().for_each(|byte| *byte = rng.bits() as u8);
        (name.clone(), keys::new(&bytes))
    };
    tenants.iter().enumerate().map(make).collect()
}

/// Fills the places in.
pub(crate) fn fill(template: &str, values: &Values<'_>) -> Result<String> {
    let mut text = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        let (place, after) = after.split_once("}}").context("a `{{` has no `}}`")?;
        text.push_str(before);
        text.push_str(&value(place.trim(), values)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

fn value(place: &str, values: &Values<'_>) -> Result<String> {
    match place.split_once(' ').map_or((place, ""), |(what, of)| (what, of.trim())) {
        ("listen", "") => Ok(values.listen.to_owned()),
        ("admin", "") => Ok(values.admin.to_owned()),
        ("engines", group) => match values.engines.get(group) {
            Some(urls) => Ok(format!("[{}]", urls.join(", "))),
            None => bail!("{{{{engines {group}}}}}: the scenario has no such group"),
        },
        ("key", tenant) => match values.keys.get(tenant) {
            Some(key) => Ok(format!("{{id: {}, digest: \"{}\"}}", key.id, key.digest)),
            None => bail!("{{{{key {tenant}}}}}: no call of the load is that tenant's"),
        },
        _ => bail!("{{{{{place}}}}}: there are listen, admin, engines GROUP and key TENANT"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_strangers_named() {
        let keys = keys_for(&["a".to_owned(), "b".to_owned()]);
        assert_ne!(keys["a"].text, keys["b"].text);
        let engines = [("main".to_owned(), vec!["http://h:1".to_owned(), "http://h:2".to_owned()])].into();
        let values = Values { listen: "h:3", admin: "h:4", engines: &engines, keys: &keys };
        let filled =
            fill("l: {{listen}} {{ admin }}\nr: {{engines main}}\nk: [{{key a}}]", &values).expect("filled");
        let key = &keys["a"];
        let expected = format!(
            "l: h:3 h:4\nr: [http://h:1, http://h:2]\nk: [{{id: {}, digest: \"{}\"}}]",
            key.id, key.digest
        );
        assert_eq!(filled, expected);
        for (wrong, word) in [
            ("{{engines x}}", "no such group"),
            ("{{key c}}", "no call"),
            ("{{port}}", "there are"),
            ("{{", "no `}}`"),
        ] {
            let error = fill(wrong, &values).expect_err(wrong).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

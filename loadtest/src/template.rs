//! Configuration template of a gateway or another router. Its placeholders are `{{listen}}` and
//! `{{admin}}` (addresses), `{{port}}` and `{{admin-port}}` (their ports), `{{folder}}` (where the run
//! may write), `{{engines GROUP}}` (a list of URLs), `{{each GROUP TEXT}}` (the text once for each
//! engine, with its address for `@`) and `{{key TENANT}}` (an entry of `keys`).

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use penstock::config::keys::{self, NewKey};
use penstock::sim::rng::Rng;

/// What is filled in.
#[derive(Debug)]
pub(crate) struct Values<'a> {
    pub(crate) listen: &'a str,
    pub(crate) admin: &'a str,
    pub(crate) folder: &'a str,
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

/// Arguments of a program with the places filled in. An argument that is `{{engines GROUP}}` becomes
/// one argument for each URL.
pub(crate) fn fill_arguments(arguments: &[String], values: &Values<'_>) -> Result<Vec<String>> {
    let mut filled = Vec::new();
    for argument in arguments {
        let group = argument.strip_prefix("{{engines ").and_then(|rest| rest.strip_suffix("}}"));
        match group {
            Some(group) => filled.extend(values.group(group.trim())?),
            None => filled.push(fill(argument, values)?),
        }
    }
    Ok(filled)
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

impl Values<'_> {
    /// URLs of a group's engines; `all` is every group.
    fn group(&self, name: &str) -> Result<Vec<String>> {
        match self.engines.get(name) {
            Some(urls) => Ok(urls.clone()),
            None if name == "all" => Ok(self.engines.values().flatten().cloned().collect()),
            None => bail!("{{{{engines {name}}}}}: the scenario has no such group"),
        }
    }
}

fn port(address: &str) -> Result<String> {
    let (_, port) = address.rsplit_once(':').context("an address has no port")?;
    Ok(port.to_owned())
}

fn value(place: &str, values: &Values<'_>) -> Result<String> {
    match place.split_once(' ').map_or((place, ""), |(what, of)| (what, of.trim())) {
        ("listen", "") => Ok(values.listen.to_owned()),
        ("admin", "") => Ok(values.admin.to_owned()),
        ("port", "") => port(values.listen),
        ("admin-port", "") => port(values.admin),
        ("folder", "") => Ok(values.folder.to_owned()),
        ("engines", group) => Ok(format!("[{}]", values.group(group)?.join(", "))),
        ("each", rest) => {
            let (group, text) = rest.split_once(' ').context("`{{each GROUP TEXT}}` has no text")?;
            let address = |url: &String| text.replace('@', url.trim_start_matches("http://"));
            Ok(values.group(group)?.iter().map(address).collect::<String>())
        }
        ("key", tenant) => match values.keys.get(tenant) {
            Some(key) => Ok(format!("{{id: {}, digest: \"{}\"}}", key.id, key.digest)),
            None => bail!("{{{{key {tenant}}}}}: no call of the load is that tenant's"),
        },
        _ => bail!(
            "{{{{{place}}}}}: there are listen, admin, port, admin-port, folder, engines GROUP, each GROUP TEXT \
             and key TENANT"
        ),
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
        let values = Values { listen: "h:3", admin: "h:4", folder: "/f", engines: &engines, keys: &keys };
        let filled =
            fill("l: {{listen}} {{ admin }}\nr: {{engines main}}\nk: [{{key a}}]", &values).expect("filled");
        let key = &keys["a"];
        let expected = format!(
            "l: h:3 h:4\nr: [http://h:1, http://h:2]\nk: [{{id: {}, digest: \"{}\"}}]",
            key.id, key.digest
        );
        assert_eq!(filled, expected);
        let filled = fill("{{port}} {{admin-port}} {{folder}} {{each main s @;}}", &values).expect("filled");
        assert_eq!(filled, "3 4 /f s h:1;s h:2;");
        assert_eq!(fill("{{engines all}}", &values).expect("filled"), "[http://h:1, http://h:2]");
        let arguments = ["--port={{port}}", "{{engines main}}"].map(str::to_owned);
        let filled = fill_arguments(&arguments, &values).expect("filled");
        assert_eq!(filled, ["--port=3", "http://h:1", "http://h:2"]);
        for (wrong, word) in [
            ("{{each main}}", "no text"),
            ("{{engines x}}", "no such group"),
            ("{{key c}}", "no call"),
            ("{{user}}", "there are"),
            ("{{", "no `}}`"),
        ] {
            let error = fill(wrong, &values).expect_err(wrong).to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}

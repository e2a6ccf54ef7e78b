//! Files of other gateways, given by mistake.

use crate::config::report::problem::ConfigProblem;

/// What another gateway's file is called, what it has at the beginning of a line, and what
/// `penstock import` calls it.
const FORMS: [(&str, &[&str], &str); 3] = [
    ("the LiteLLM proxy", &["model_list:", "litellm_settings:", "router_settings:"], "litellm"),
    ("llm-d or the Gateway API Inference Extension", &["kind: Inference"], "llm-d"),
    ("nginx", &["upstream ", "http {", "server {", "location "], "nginx"),
];

/// The one problem of a file that is another gateway's.
pub(super) fn recognised(text: &str, name: &str) -> Option<ConfigProblem> {
    let has = |starts: &[&str]| text.lines().any(|line| starts.iter().any(|start| line.starts_with(start)));
    if has(&["pools:"]) {
        return None;
    }
    let (what, _, command) = FORMS.iter().find(|(_, starts, _)| has(starts))?;
    Some(ConfigProblem {
        hint: Some(format!(
            "`penstock import {command} {name} -o penstock.yaml` makes one of Penstock from it"
        )),
        ..ConfigProblem::of_file(format!("is a configuration of {what}"))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::config::load::load_str;

    #[test]
    fn files_of_other_gateways_are_known() {
        for (text, command) in [
            ("model_list:\n  - model_name: m\n", "import litellm p"),
            (
                "apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\n---\nkind: Service\n",
                "import llm-d p",
            ),
            ("upstream vllm {\n  server 10.0.0.1:8000;\n}\n", "import nginx p"),
        ] {
            let report = load_str(text, "p", Path::new("/"), None).into_result().unwrap_err();
            assert_eq!(report.problems.len(), 1, "{report}");
            assert!(report.to_string().contains(command), "{report}");
        }
        let own = "version: 1\nmodel_list:\npools: {}\n";
        let report = load_str(own, "p", Path::new("/"), None).into_result().unwrap_err();
        assert!(!report.to_string().contains("import"), "{report}");
    }
}

// Sign-in at the operators' identity provider: authorization code with PKCE, as a public client. What one
// sign-in needs stays in this tab until the provider leads back here.

const KEPT = "penstock-sign-in";
const ADDRESS = () => `${location.origin}/console`;

const base64url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** The provider, or null. Throws when the gateway does not answer. */
export async function provider() {
  const answer = await fetch("/console/sign-in", { cache: "no-store" });
  return answer.ok ? (await answer.json()).provider : null;
}

/** Leaves the page for the provider's one; `back` is where the user was, for the return. */
export async function leave(to, back) {
  if (!to.authorization_endpoint || !to.token_endpoint) throw new Error(`${to.issuer} has not told the gateway where to sign in: the provider may be away, or the gateway cannot reach it. Try again in a moment, or use a token.`);
  if (!window.isSecureContext) throw new Error("A sign-in at a provider needs https, or an address on this machine such as http://localhost.");
  const kept = { state: random(), nonce: random(), verifier: random(), back, issuer: to.issuer, client: to.client_id, tokens: to.token_endpoint };
  const challenge = base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(kept.verifier)));
  sessionStorage.setItem(KEPT, JSON.stringify(kept));
  const url = new URL(to.authorization_endpoint);
  const query = { response_type: "code", client_id: to.client_id, redirect_uri: ADDRESS(), scope: to.scopes, state: kept.state, nonce: kept.nonce, code_challenge: challenge, code_challenge_method: "S256" };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  location.assign(url);
}

/** After the provider led back: `{ token, back }`, or `{ problem, back }`; null if it did not. */
export async function arrive() {
  const said = new URLSearchParams(location.search);
  if (!said.has("state") || !(said.has("code") || said.has("error"))) return null;
  const kept = JSON.parse(sessionStorage.getItem(KEPT) || "null");
  sessionStorage.removeItem(KEPT);
  const back = kept ? kept.back : {};
  // The code leaves the address, and so the history.
  history.replaceState(null, "", `/console${back.hash || ""}`);
  try {
    if (!kept || kept.state !== said.get("state")) throw new Error("this sign-in was not begun in this tab; begin it here");
    if (said.has("iss") && said.get("iss") !== kept.issuer) throw new Error("another provider answered than the one that was asked");
    if (said.has("error")) throw new Error(`the provider says: ${said.get("error_description") || said.get("error")}`);
    return { token: await exchange(kept, said.get("code")), back };
  } catch (problem) {
    return { problem: String(problem.message || problem), back };
  }
}

async function exchange(kept, code) {
  const form = { grant_type: "authorization_code", code, redirect_uri: ADDRESS(), client_id: kept.client, code_verifier: kept.verifier };
  let answer;
  try {
    answer = await fetch(kept.tokens, { method: "POST", body: new URLSearchParams(form), credentials: "omit", cache: "no-store", redirect: "error" });
  } catch {
    throw new Error(`${new URL(kept.tokens).host} gave this page no answer. It must be reachable from here, and allow requests from ${location.origin} (CORS) to a public client`);
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(`the provider gives no token: ${body.error_description || body.error || `status ${answer.status}`}`);
  if (!body.id_token) throw new Error("the provider gave no ID token; the scope openid is needed");
  if (claims(body.id_token).nonce !== kept.nonce) throw new Error("the provider's token belongs to another sign-in; try again");
  return body.id_token;
}

function claims(token) {
  try {
    return JSON.parse(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return {};
  }
}

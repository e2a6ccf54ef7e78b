// Sign-in at the operators' identity provider: authorization code with PKCE, as a public client. What one
// sign-in needs stays in this tab until the provider leads back here.

const PENDING_SIGN_IN = "penstock-sign-in";
const ADDRESS = () => `${location.origin}/console`;
/** Longest wait for an answer, in milliseconds. */
const TIMEOUT = 15_000;

const base64url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const random = () => base64url(crypto.getRandomValues(new Uint8Array(32)));

/** The provider, or null where there is none. */
export async function provider() {
  try {
    const answer = await fetch("/console/sign-in", { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT) });
    if (answer.ok) return (await answer.json()).provider;
  } catch {}
  throw new Error("the gateway does not answer; try again in a moment.");
}

/** Goes to the provider's page. `returnTo` is where the user was: it comes back with the answer. */
export async function goToProvider(to, returnTo) {
  if (!to.authorization_endpoint || !to.token_endpoint) throw new Error(`${to.issuer} has not told the gateway where to sign in: the provider may be away, or the gateway cannot reach it. Try again in a moment, or use a token.`);
  if (!window.isSecureContext) throw new Error("A sign-in at a provider needs https, or an address on this machine such as http://localhost.");
  const pending = { state: random(), nonce: random(), verifier: random(), returnTo, issuer: to.issuer, client: to.client_id, tokens: to.token_endpoint };
  const challenge = base64url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier)));
  sessionStorage.setItem(PENDING_SIGN_IN, JSON.stringify(pending));
  const url = new URL(to.authorization_endpoint);
  const query = { response_type: "code", client_id: to.client_id, redirect_uri: ADDRESS(), scope: to.scopes, state: pending.state, nonce: pending.nonce, code_challenge: challenge, code_challenge_method: "S256" };
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  location.assign(url);
}

/** The provider's answer if it has just led back here, else null. The code leaves the address, and so the history. */
export function readAnswer() {
  const query = new URLSearchParams(location.search);
  if (!query.has("state") || !(query.has("code") || query.has("error"))) return null;
  const pending = JSON.parse(sessionStorage.getItem(PENDING_SIGN_IN) || "null");
  sessionStorage.removeItem(PENDING_SIGN_IN);
  const returnTo = pending ? pending.returnTo : { hash: location.hash };
  history.replaceState(null, "", `/console${returnTo.hash || ""}`);
  return { query, pending, returnTo };
}

/** The token that an answer leads to. */
export async function tokenFor({ query, pending }) {
  if (!pending || pending.state !== query.get("state")) throw new Error("this sign-in was not begun in this tab; begin it here");
  if (query.has("iss") && query.get("iss") !== pending.issuer) throw new Error("another provider answered than the one that was asked");
  if (query.has("error")) throw new Error(`the provider says: ${query.get("error_description") || query.get("error")}`);
  const form = { grant_type: "authorization_code", code: query.get("code"), redirect_uri: ADDRESS(), client_id: pending.client, code_verifier: pending.verifier };
  let ok, status, text;
  try {
    const answer = await fetch(pending.tokens, { method: "POST", body: new URLSearchParams(form), credentials: "omit", cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT) });
    ({ ok, status } = answer);
    text = await answer.text();
  } catch {
    throw new Error(`${new URL(pending.tokens).host} gave this page no answer. It must be reachable from here, and allow requests from ${location.origin} (CORS) to a public client`);
  }
  const body = object(text);
  if (!ok) throw new Error(`the provider gives no token: ${body.error_description || body.error || `status ${status}`}`);
  if (!body.id_token) throw new Error("the provider gave no ID token; the scope openid is needed");
  if (claims(body.id_token).nonce !== pending.nonce) throw new Error("the provider's token belongs to another sign-in; try again");
  return body.id_token;
}

function claims(token) {
  try {
    return object(atob(token.split(".")[1].replace(/-/g, "+").replace(/_/g, "/")));
  } catch {
    return {};
  }
}

/** An object of JSON; an empty one for any other text. */
function object(text) {
  try {
    return Object(JSON.parse(text));
  } catch {
    return {};
  }
}

// Prints the public key of an identity provider, and tokens of it: a right one,
// and ones that are wrong in one way each.
import { createHmac, generateKeyPairSync, sign } from "node:crypto";

const [issuer] = process.argv.slice(2);
const { privateKey, publicKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
const stranger = generateKeyPairSync("rsa", { modulusLength: 2048 });
const now = Math.floor(Date.now() / 1000);
const claims = { iss: issuer, aud: "penstock", sub: "somebody", team: "team", exp: now + 7200 };

const part = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
const signed = (header, payload, signature) => {
  const text = `${part({ typ: "JWT", kid: "k1", ...header })}.${part(payload)}`;
  return `${text}.${Buffer.from(signature(text)).toString("base64url")}`;
};
const rsa = (key) => (text) => sign("sha256", Buffer.from(text), key);
const token = (more, key = privateKey) => signed({ alg: "RS256" }, { ...claims, ...more }, rsa(key));
const pem = publicKey.export({ type: "spki", format: "pem" });

console.log(
  JSON.stringify({
    jwk: { ...publicKey.export({ format: "jwk" }), kid: "k1", alg: "RS256", use: "sig" },
    tokens: {
      right: token({}),
      token_expired: token({ exp: now - 600 }),
      token_audience: token({ aud: "somebody-else" }),
      token_signature: token({}, stranger.privateKey),
      token_none: signed({ alg: "none" }, claims, () => ""),
      token_confused: signed({ alg: "HS256" }, claims, (text) => createHmac("sha256", pem).update(text).digest()),
      away: token({ iss: "http://127.0.0.1:1" }),
      token_too_long: token({ padding: "x".repeat(9000) }),
    },
  }),
);

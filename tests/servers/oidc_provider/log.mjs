// What the server remembers of a request.

import { createHash } from 'node:crypto';

import { realNow } from './clock.mjs';

export const ENDPOINTS = {
  '/.well-known/openid-configuration': 'metadata',
  '/.well-known/oauth-authorization-server': 'metadata',
  '/auth': 'authorization',
  '/jwks': 'jwks',
  '/me': 'userinfo',
  '/session/end': 'end_session',
  '/token': 'token',
  '/token/introspection': 'introspection',
  '/token/revocation': 'revocation',
};

export const keyIdOf = (jwt) => (
  jwt ? JSON.parse(Buffer.from(jwt.split('.')[0], 'base64url')).kid ?? null : null
);

export const sha256 = (text) => (text ? createHash('sha256').update(text).digest('hex') : null);

export function newEntry(req, path) {
  return {
    at: realNow() / 1000, // by the machine's clock, also when the server's is shifted
    endpoint: ENDPOINTS[path] ?? 'other',
    method: req.method,
    path,
    grant_type: null,
    client_id: null,
    client_auth: null, // as the request has it: basic, post, assertion, none
    scope: null,
    code_sha256: null,
    refresh_token_sha256: null,
    issued_refresh_token_sha256: null, // also when the answer was then lost
    id_token_kid: null, // the key that signed the ID token of the answer
    status: null, // what the provider decided, or the status of an injected fault
    error: null,
    fault: null,
    processed: false, // the provider saw it
    answered: false, // an answer went out whole
  };
}

const fromForm = (text) => decodeURIComponent(text.replace(/\+/g, '%20'));

export function describe(entry, req, body) {
  if (entry.endpoint === 'authorization') {
    const query = new URLSearchParams(req.url.split('?')[1]);
    entry.client_id = query.get('client_id');
    entry.scope = query.get('scope');
  }
  if (req.method !== 'POST') return;
  const form = new URLSearchParams(body.toString());
  entry.grant_type = form.get('grant_type');
  entry.scope = form.get('scope');
  entry.code_sha256 = sha256(form.get('code'));
  entry.refresh_token_sha256 = sha256(form.get('refresh_token'));
  entry.client_id = form.get('client_id');
  const [, basic] = /^basic (\S+)$/i.exec(req.headers.authorization ?? '') ?? [];
  try {
    if (basic) {
      entry.client_auth = 'basic';
      entry.client_id ??= fromForm(Buffer.from(basic, 'base64').toString().split(':')[0]);
    } else if (form.has('client_assertion')) {
      entry.client_auth = 'assertion';
      const [, claims] = form.get('client_assertion').split('.');
      entry.client_id ??= JSON.parse(Buffer.from(claims, 'base64url')).sub;
    } else {
      entry.client_auth = form.has('client_secret') ? 'post' : 'none';
    }
  } catch {
    // Credentials that cannot be read: the provider says what it thinks of them.
  }
}

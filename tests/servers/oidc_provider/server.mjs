// An OpenID Provider for tests: oidc-provider on 127.0.0.1, everything in memory.
//
// It signs users in by itself, keeps a log of every request, breaks answers on demand
// and is steered under /control. Started by tests/servers/oidc_provider_driver.py.
//
// Environment:
//   FRESHTOKEN_OIDC_MODULES      folder whose node_modules holds oidc-provider
//   FRESHTOKEN_OIDC_CONTROL_KEY  what /control expects in the header X-Control-Key
//
// The first line on standard output is JSON: {"ready": true, "issuer": ..., "port": ...}.
// The process ends when its standard input does, so it never outlives the test run.

import { randomBytes } from 'node:crypto';
import http from 'node:http';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { pathToFileURL } from 'node:url';

import { shiftClock, stampDate } from './clock.mjs';
import {
  checkFault, hangUp, holdBack, nameOf, nextFault, readBody, replay,
} from './faults.mjs';
import { KeyRing, newKey } from './keys.mjs';
import { describe, keyIdOf, newEntry, sha256 } from './log.mjs';

const CONTROL_KEY = process.env.FRESHTOKEN_OIDC_CONTROL_KEY;
const MODULES = process.env.FRESHTOKEN_OIDC_MODULES;
if (!CONTROL_KEY || !MODULES) throw new Error('started without its environment');
const require = createRequire(join(MODULES, 'package.json'));
const { Provider, errors, interactionPolicy } = await import(pathToFileURL(require.resolve('oidc-provider')));

process.stdin.on('end', () => process.exit(0)).on('error', () => process.exit(0)).resume();

const server = http.createServer();

// ---------------------------------------------------------------- state of one test

const DEFAULT_SETTINGS = Object.freeze({
  access_token_ttl: 5, // seconds, for users and for client credentials
  at_hash: false, // in ID tokens from the token endpoint; this server leaves it out there
  authorization_code_ttl: 60, // seconds
  clock_offset: 0, // seconds by which the server's clock is ahead of the machine's
  id_token_ttl: 3600, // seconds
  keep_alive_ms: 5000, // an idle connection is closed after it (Node adds a second)
  online_refresh_tokens: false, // refresh tokens without offline_access, bound to the session
  refresh_token_ttl: 14 * 24 * 3600, // seconds
  rotate_refresh_tokens: true,
});
const settings = { ...DEFAULT_SETTINGS };
let faults = [];
let log = [];
let store = new Map();

function reset() {
  changeSettings(DEFAULT_SETTINGS);
  faults = [];
  log = []; // a request still under way goes on writing to the old array
  store = new Map();
}

// The adapter that comes with oidc-provider forgets the oldest of 1000 records, which a
// test under load would take for a server that loses tokens. This one forgets nothing
// before its time, and records go in and out as copies, as they do with a database.
class Adapter {
  constructor(model) { this.model = model; }

  key(id) { return `${this.model}:${id}`; }

  async upsert(id, payload, expiresIn) {
    const expiresAt = expiresIn === undefined ? Infinity : Date.now() + expiresIn * 1000;
    store.set(this.key(id), { model: this.model, payload: structuredClone(payload), expiresAt });
  }

  async find(id) {
    const record = store.get(this.key(id));
    return record && record.expiresAt > Date.now() ? structuredClone(record.payload) : undefined;
  }

  async findByUid(uid) { return this.findWhere((payload) => payload.uid === uid); }

  async findByUserCode(code) { return this.findWhere((payload) => payload.userCode === code); }

  async findWhere(matches) {
    for (const { model, payload, expiresAt } of store.values()) {
      if (model === this.model && matches(payload) && expiresAt > Date.now()) {
        return structuredClone(payload);
      }
    }
    return undefined;
  }

  async consume(id) {
    const record = store.get(this.key(id));
    if (record) record.payload.consumed = Math.floor(Date.now() / 1000);
  }

  async destroy(id) { store.delete(this.key(id)); }

  async revokeByGrantId(grantId) {
    for (const [key, { payload }] of store) {
      if (payload.grantId === grantId) store.delete(key);
    }
  }
}

// ---------------------------------------------------------------- clients

const newSecret = () => randomBytes(32).toString('hex');

// Every client is native, so that a redirect URI may have any port (RFC 8252 §7.3).
const COMMON = {
  application_type: 'native',
  response_types: ['code'],
  redirect_uris: ['http://127.0.0.1/callback', 'http://127.0.0.1/auth/callback'],
  post_logout_redirect_uris: ['http://127.0.0.1/', 'http://127.0.0.1/signed-out'],
};
const USERS = ['authorization_code', 'refresh_token'];
const CONFIDENTIAL = [...USERS, 'client_credentials'];

async function newClients() {
  const [rs256, es256] = await Promise.all([newKey('client-rs256', 'RS256'), newKey('client-es256', 'ES256')]);
  const withSecret = (id, method, more = {}) => ({
    client_id: id,
    client_secret: newSecret(),
    token_endpoint_auth_method: method,
    grant_types: CONFIDENTIAL,
    ...COMMON,
    ...more,
  });
  const withKey = (id, { privateJwk, publicJwk }) => ({
    metadata: {
      client_id: id,
      token_endpoint_auth_method: 'private_key_jwt',
      token_endpoint_auth_signing_alg: publicJwk.alg,
      jwks: { keys: [publicJwk] },
      grant_types: CONFIDENTIAL,
      ...COMMON,
    },
    private_jwk: privateJwk,
  });
  return {
    client_secret_basic: { metadata: withSecret('client_secret_basic', 'client_secret_basic') },
    client_secret_post: { metadata: withSecret('client_secret_post', 'client_secret_post') },
    client_secret_jwt: {
      metadata: withSecret('client_secret_jwt', 'client_secret_jwt', {
        token_endpoint_auth_signing_alg: 'HS256',
      }),
    },
    private_key_jwt_rs256: withKey('private_key_jwt_rs256', rs256),
    private_key_jwt_es256: withKey('private_key_jwt_es256', es256),
    ...Object.fromEntries(['RS256', 'PS256', 'ES256', 'EdDSA', 'Ed25519'].map((alg) => {
      const id = `id_token_${alg.toLowerCase()}`;
      return [id, {
        metadata: withSecret(id, 'client_secret_basic', { id_token_signed_response_alg: alg }),
      }];
    })),
    none: {
      metadata: {
        client_id: 'none', token_endpoint_auth_method: 'none', grant_types: USERS, ...COMMON,
      },
    },
    // oidc-provider takes the whole printable ASCII range, space included, in an id and a
    // secret (VSCHAR, RFC 6749 appendix A.1 and A.2). It refuses anything outside of it:
    // at registration with "invalid client_id value", in Basic credentials with 400
    // invalid_request (not 401). So no non-ASCII letter is possible here.
    special_characters: {
      metadata: withSecret('id: 100% + a&b/c? =d', 'client_secret_basic', {
        client_secret: `s: 50% + x&y/z? ="~ ${newSecret()}`,
      }),
    },
  };
}

// ---------------------------------------------------------------- the provider

// Two APIs, whose access tokens are JWTs (RFC 9068) and opaque.
const RESOURCES = {
  'https://api.example.test/jwt': 'jwt',
  'https://api.example.test/opaque': 'opaque',
};

function describeResource(_ctx, resource, client) {
  const accessTokenFormat = RESOURCES[resource];
  if (!accessTokenFormat) throw new errors.InvalidTarget();
  return {
    scope: 'api',
    audience: resource,
    accessTokenFormat,
    accessTokenTTL: settings.access_token_ttl,
    jwt: { sign: { alg: client.idTokenSignedResponseAlg } },
  };
}

// Without the rule that a native client always asks its user again: with it, no browser
// that has a session could use prompt=none.
function newPolicy() {
  const policy = interactionPolicy.base();
  policy.get('consent').checks.remove('native_client_prompt');
  return policy;
}

// One provider per key set: its keys are fixed when it is made. All of them share the
// store and the cookie keys, so that sign-ins and tokens go on over a rotation.
function newProvider(issuer, clients, cookieKeys, keys) {
  const provider = new Provider(issuer, {
    adapter: Adapter,
    clients: Object.values(clients).map(({ metadata }) => metadata),
    jwks: { keys },
    cookies: { keys: cookieKeys },
    clockTolerance: 0, // the default keeps expired tokens good for another 15 s
    scopes: ['openid', 'offline_access', 'email', 'profile', 'api'],
    claims: { openid: ['sub'], email: ['email'], profile: ['name'] },
    findAccount: (_ctx, sub) => ({
      accountId: sub,
      claims: () => ({ sub, name: `Name of ${sub}`, email: `${sub}@example.test` }),
    }),
    features: {
      devInteractions: { enabled: false },
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      resourceIndicators: { enabled: true, getResourceServerInfo: describeResource },
      revocation: { enabled: true },
      rpInitiatedLogout: { enabled: true },
      userinfo: { enabled: true },
    },
    interactions: { policy: newPolicy(), url: (_ctx, { uid }) => `/interaction/${uid}` },
    issueRefreshToken: (_ctx, client, code) => client.grantTypeAllowed('refresh_token')
      && (settings.online_refresh_tokens || code.scopes.has('offline_access')),
    rotateRefreshToken: () => settings.rotate_refresh_tokens,
    ttl: {
      AccessToken: () => settings.access_token_ttl,
      AuthorizationCode: () => settings.authorization_code_ttl,
      ClientCredentials: () => settings.access_token_ttl,
      Grant: 14 * 24 * 3600,
      IdToken: () => settings.id_token_ttl,
      Interaction: 600,
      RefreshToken: () => settings.refresh_token_ttl,
      Session: 14 * 24 * 3600,
    },
  });
  provider.on('server_error', (_ctx, error) => console.error(error));
  const { issue } = provider.IdToken.prototype;
  provider.IdToken.prototype.issue = function issueWithHash(options) {
    const accessToken = this.ctx?.oidc.entities.AccessToken;
    // A token for no API is opaque, and its own jti; the provider does the hashing.
    if (settings.at_hash && options.use === 'idtoken' && accessToken && !accessToken.aud) {
      this.set('at_hash', accessToken.jti);
    }
    return issue.call(this, options);
  };
  // What the provider decided, whatever becomes of its answer afterwards.
  provider.use(async (ctx, next) => {
    await next();
    const { entry } = ctx.req;
    if (!entry) return;
    entry.processed = true;
    entry.status = ctx.status;
    entry.error = ctx.body?.error ?? null;
    entry.issued_refresh_token_sha256 = sha256(ctx.body?.refresh_token);
    entry.id_token_kid = keyIdOf(ctx.body?.id_token);
  });
  return provider;
}

// Plays the user: signs in and grants all that was asked. Who it is stands in the header
// X-Test-User, else in login_hint, else it is "user-1". X-Test-Refusal holds the error of
// a user who does not want to.
async function interact(provider, req, res) {
  const { prompt, params, session, grantId } = await provider.interactionDetails(req, res);
  const refusal = req.headers['x-test-refusal'];
  if (refusal) {
    const result = { error: refusal, error_description: 'the user refused' };
    await provider.interactionFinished(req, res, result, { mergeWithLastSubmission: false });
    return;
  }
  if (prompt.name === 'login') {
    const login = { accountId: req.headers['x-test-user'] ?? params.login_hint ?? 'user-1' };
    await provider.interactionFinished(req, res, { login }, { mergeWithLastSubmission: false });
    return;
  }
  const grant = grantId
    ? await provider.Grant.find(grantId)
    : new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  const { missingOIDCScope, missingOIDCClaims, missingResourceScopes } = prompt.details;
  if (missingOIDCScope) grant.addOIDCScope(missingOIDCScope.join(' '));
  if (missingOIDCClaims) grant.addOIDCClaims(missingOIDCClaims);
  for (const [resource, scopes] of Object.entries(missingResourceScopes ?? {})) {
    grant.addResourceScope(resource, scopes.join(' '));
  }
  const consent = { grantId: await grant.save() };
  await provider.interactionFinished(req, res, { consent }, { mergeWithLastSubmission: true });
}

// ---------------------------------------------------------------- a request

async function serve({ provider, callback }, req, res, path) {
  if (req.method === 'GET' && path.startsWith('/interaction/')) {
    await interact(provider, req, res);
    return;
  }
  const entry = newEntry(req, path);
  log.push(entry);
  const body = await readBody(req);
  describe(entry, req, body);
  const found = nextFault(faults, entry);
  if (found) entry.fault = nameOf(found);
  const fault = found ?? {};

  if (fault.delay_ms) await sleep(fault.delay_ms);
  if (fault.drop === 'before') {
    hangUp(req, fault);
    return;
  }
  if (fault.status !== undefined) {
    const text = typeof fault.body === 'string' ? fault.body : JSON.stringify(fault.body ?? '');
    const type = typeof fault.body === 'object' ? { 'content-type': 'application/json' } : {};
    entry.status = fault.status;
    entry.error = fault.body?.error ?? null;
    entry.answered = !res.destroyed;
    res.writeHead(fault.status, { ...type, ...fault.headers }).end(fault.body === undefined ? '' : text);
    return;
  }

  const release = holdBack(res);
  const copy = replay(req, body);
  copy.entry = entry;
  await callback(copy, res);
  let answer = release();

  if (fault.delay_after_ms) await sleep(fault.delay_after_ms);
  if (res.destroyed) return; // the client did not wait
  if (fault.drop === 'after') {
    hangUp(req, fault);
    return;
  }
  if (fault.truncate === 'connection') {
    res.write(answer.subarray(0, answer.length / 2), () => hangUp(req, fault));
    return;
  }
  if (fault.truncate === 'body') {
    answer = answer.subarray(0, answer.length / 2);
    res.setHeader('content-length', answer.length);
  }
  if (fault.garble) answer = answer.map((byte, i) => (i % 2 ? 0xff : byte));
  entry.answered = true;
  res.end(answer);
}

// ---------------------------------------------------------------- control

// Ends every grant that fits, as an administrator would: with all of its tokens.
async function revokeGrants({ refresh_token: token, client_id: clientId, account_id: accountId }, provider) {
  let grantId;
  if (token !== undefined) {
    grantId = (await provider.RefreshToken.find(token, { ignoreExpiration: true }))?.grantId;
    if (!grantId) return 0;
  }
  const ended = [...store.values()]
    .filter(({ model }) => model === 'Grant')
    .map(({ payload }) => payload)
    .filter((grant) => (grantId === undefined || grant.jti === grantId)
      && (clientId === undefined || grant.clientId === clientId)
      && (accountId === undefined || grant.accountId === accountId))
    .map((grant) => grant.jti);
  for (const [key, { payload, model }] of store) {
    if (ended.includes(model === 'Grant' ? payload.jti : payload.grantId)) store.delete(key);
  }
  return ended.length;
}

// Adds a client until the next reset; the provider's own checks decide.
async function registerClient(metadata, provider) {
  const full = { grant_types: CONFIDENTIAL, ...COMMON, ...metadata };
  const adapter = new Adapter('Client');
  await adapter.upsert(full.client_id, full);
  try {
    return { metadata: (await provider.Client.find(full.client_id)).metadata() };
  } catch (error) {
    await adapter.destroy(full.client_id);
    throw new TypeError(error.error_description ?? error.message);
  }
}

function changeSettings(changes) {
  for (const [key, value] of Object.entries(changes)) {
    if (typeof value !== typeof DEFAULT_SETTINGS[key]) throw new TypeError(`no such setting: ${key}`);
  }
  Object.assign(settings, changes);
  server.keepAliveTimeout = settings.keep_alive_ms;
  shiftClock(settings.clock_offset);
  return settings;
}

async function control({ provider, clients, ring, renew }, req, res, path) {
  const body = await readBody(req);
  const say = (status, value) => {
    res.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  };
  if (req.headers['x-control-key'] !== CONTROL_KEY) {
    say(403, { error: 'wrong control key' });
    return;
  }
  try {
    const input = body.length ? JSON.parse(body) : {};
    switch (`${req.method} ${path}`) {
      case 'GET /control/health': return say(200, { ready: true, issuer: provider.issuer, node: process.version });
      case 'GET /control/clients': return say(200, clients);
      case 'POST /control/clients': return say(200, await registerClient(input, provider));
      case 'GET /control/faults': return say(200, faults.filter(({ count }) => count > 0));
      case 'POST /control/faults': {
        faults.push(...input.map(checkFault));
        return say(200, {});
      }
      case 'GET /control/log': return say(200, log);
      case 'POST /control/keys': {
        await ring.rotate(input.kind);
        await renew();
        return say(200, ring.published.map(({ kid }) => kid));
      }
      case 'POST /control/reset': {
        reset();
        if (!ring.isFirst) {
          ring.restore();
          await renew();
        }
        return say(200, {});
      }
      case 'POST /control/revoke': return say(200, { grants: await revokeGrants(input, provider) });
      case 'POST /control/settings': return say(200, changeSettings(input));
      default: return say(404, { error: 'no such control' });
    }
  } catch (error) {
    return say(400, { error: error.message });
  }
}

// ---------------------------------------------------------------- start

await new Promise((resolve) => { server.listen(0, '127.0.0.1', resolve); });
const { port } = server.address();
const issuer = `http://127.0.0.1:${port}`;

const [clients, ring] = await Promise.all([newClients(), KeyRing.create()]);
const cookieKeys = [newSecret()];
const current = { clients, ring, renew };

// A request that is under way ends with the keys it began with, as in a real rotation.
async function renew() {
  const provider = newProvider(issuer, clients, cookieKeys, ring.published);
  await Promise.all(Object.values(clients).map(({ metadata }) => provider.Client.find(metadata.client_id)));
  Object.assign(current, { provider, callback: provider.callback() });
}
await renew();

server.on('request', (req, res) => {
  const path = req.url.split('?')[0];
  stampDate(res);
  const done = path.startsWith('/control/')
    ? control(current, req, res, path)
    : serve(current, req, res, path);
  done.catch((error) => {
    if (req.destroyed && !req.complete) return; // the client left in mid-request
    console.error(error);
    if (!res.headersSent) res.writeHead(500);
    res.end();
  });
});

console.log(JSON.stringify({ ready: true, issuer, port }));

// Keys, and how the provider's own ones are rotated.

import { generateKeyPair } from 'node:crypto';
import { promisify } from 'node:util';

const generate = promisify(generateKeyPair);

export async function newKey(kid, alg) {
  const made = {
    RS256: () => generate('rsa', { modulusLength: 2048 }),
    ES256: () => generate('ec', { namedCurve: 'P-256' }),
    EdDSA: () => generate('ed25519'),
  }[alg];
  const { privateKey, publicKey } = await made();
  const extra = { kid, alg, use: 'sig' };
  return {
    privateJwk: { ...privateKey.export({ format: 'jwk' }), ...extra },
    publicJwk: { ...publicKey.export({ format: 'jwk' }), ...extra },
  };
}

async function newSigningKeys(kidOf) {
  const pairs = await Promise.all(['RS256', 'ES256', 'EdDSA'].map((alg) => newKey(kidOf(alg), alg)));
  return pairs.map(({ privateJwk }) => {
    // Published without alg, as this server does by itself: RSA serves RS256 and PS256.
    const { alg, ...jwk } = privateJwk;
    return jwk;
  });
}

// The provider's keys: `signing` has one of each type and is in use, `retired` is still
// published. The provider signs with the first key that fits.
export class KeyRing {
  static async create() {
    const ring = new KeyRing();
    ring.first = await newSigningKeys((alg) => alg.toLowerCase());
    ring.restore();
    return ring;
  }

  get published() { return [...this.signing, ...this.retired]; }

  get isFirst() { return this.signing === this.first && !this.retired.length; }

  restore() {
    this.rotations = 0;
    this.signing = this.first;
    this.retired = [];
  }

  async rotate(kind) {
    const turn = this.rotations + 1;
    const named = (alg) => `${alg.toLowerCase()}-${turn}`;
    switch (kind) {
      case 'overlap': {
        const next = await newSigningKeys(named);
        this.retired = this.published;
        this.signing = next;
        break;
      }
      case 'hard': {
        this.signing = await newSigningKeys(named);
        this.retired = [];
        break;
      }
      case 'same_kid': {
        const kids = this.signing.map(({ kid }) => kid);
        this.signing = await newSigningKeys(() => kids.shift());
        break;
      }
      default: throw new TypeError('a rotation is "overlap", "hard" or "same_kid"');
    }
    this.rotations = turn;
  }
}

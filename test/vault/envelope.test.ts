import { afterAll, beforeAll, describe, expect, test } from '@jest/globals'
import {
  chmodSync,
  chownSync,
  lstatSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import fc from '../support/fast-check.ts'
import { rewrap, seal, SealBroken, unseal, type Sealed } from '../../src/vault/envelope.ts'
import { ensureKeyFile, makeKey, openVaultKeys, replaceKeys } from '../../src/vault/keys.ts'
import { payloadCodec } from '../../src/vault/payload-codec.ts'
import { runFolder } from '../support/run-folder.ts'

const label = fc.record({
  kind: fc.string({ maxLength: 12 }),
  id: fc.string({ maxLength: 12 }),
  version: fc.nat(),
})
const plain = fc.uint8Array({ maxLength: 2_000 }).map((bytes) => Buffer.from(bytes))
const key = makeKey()
const other = makeKey()

describe('a sealed record', () => {
  test('opens with its key and label, and shows nothing of its content', () => {
    fc.assert(
      fc.property(plain, label, (content, of) => {
        const sealed = seal(content, of, key)
        expect(unseal(sealed, of, key).equals(content)).toBe(true)
        if (content.length >= 8)
          expect(Buffer.concat([sealed.dataKey, sealed.content]).includes(content)).toBe(false)
        expect(seal(content, of, key).content.equals(sealed.content)).toBe(false)
      }),
    )
  })

  test('does not open when one bit of it is another', () => {
    const sealed = seal(Buffer.from('a secret of some length'), { kind: 'k', id: 'i', version: 1 }, key)
    const flipped = (bytes: Buffer, bit: number): Buffer => {
      const copy = Buffer.from(bytes)
      copy[bit >> 3] = (copy[bit >> 3] ?? 0) ^ (1 << (bit & 7))
      return copy
    }
    for (const part of ['dataKey', 'content'] as const) {
      for (let bit = 0; bit < sealed[part].length * 8; bit++)
        expect(() =>
          unseal({ ...sealed, [part]: flipped(sealed[part], bit) }, { kind: 'k', id: 'i', version: 1 }, key),
        ).toThrow(SealBroken)
    }
  })

  test('does not open cut short, nor under another label, key, or with a part of another record', () => {
    fc.assert(
      fc.property(plain, plain, label, label, fc.nat(), (one, two, of, elsewhere, cut) => {
        fc.pre(JSON.stringify(of) !== JSON.stringify(elsewhere))
        const [a, b] = [seal(one, of, key), seal(two, elsewhere, key)]
        const broken: Sealed[] = [
          { ...a, content: a.content.subarray(0, cut % a.content.length) },
          { ...a, dataKey: a.dataKey.subarray(0, cut % a.dataKey.length) },
          { ...a, content: b.content },
          { ...a, dataKey: b.dataKey },
          b,
        ]
        for (const sealed of broken) expect(() => unseal(sealed, of, key)).toThrow(SealBroken)
        expect(() => unseal(a, of, other)).toThrow(SealBroken)
      }),
    )
  })

  test('opens under no label that differs in one member', () => {
    const of = { kind: 'k', id: 'i', version: 1 }
    const sealed = seal(Buffer.from('a secret of some length'), of, key)
    for (const other of [{ kind: 'l' }, { id: 'j' }, { version: 2 }])
      expect(() => unseal(sealed, { ...of, ...other }, key)).toThrow(SealBroken)
  })

  test('wrapped under another key, opens with that and no longer with the first; its content is not touched', () => {
    fc.assert(
      fc.property(plain, label, (content, of) => {
        const before = seal(content, of, key)
        const after = rewrap(before, of, key, other)
        expect(unseal(after, of, other).equals(content)).toBe(true)
        expect(after.content.equals(before.content)).toBe(true)
        expect(() => unseal(after, of, key)).toThrow(SealBroken)
        expect(() => rewrap(before, { ...of, version: of.version + 1 }, key, other)).toThrow(SealBroken)
      }),
    )
  })
})

describe('a key file', () => {
  let folder: string
  beforeAll(() => {
    folder = mkdtempSync(join(runFolder(), 'orrery-vault-'))
  })
  afterAll(() => rmSync(folder, { recursive: true, force: true }))

  test('is made once, 0600, whoever comes first', async () => {
    const file = join(folder, 'made.key')
    await Promise.all(Array.from({ length: 20 }, () => ensureKeyFile(file)))
    const text = readFileSync(file, 'utf8')
    await ensureKeyFile(file)
    expect(readFileSync(file, 'utf8')).toBe(text)
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect(await (await openVaultKeys(file)).all()).toHaveLength(1)
  })

  test.each([
    ['absent', undefined, 0o600, /does not exist: make one with: umask 077; openssl rand -base64 32/],
    ['readable by others', `${Buffer.alloc(32, 7).toString('base64')}\n`, 0o640, /mode 0640.*chmod 600/],
    ['empty', '# nothing\n\n', 0o600, /holds no key/],
    ['a key too short', `${Buffer.alloc(16, 7).toString('base64')}\n`, 0o600, /no key in line 1/],
    ['no base64', `${Buffer.alloc(32, 7).toString('base64')}\nhunter2hunter2\n`, 0o600, /no key in line 2/],
  ])('%s is refused with the remedy, and without its content', async (name, text, mode, says) => {
    const file = join(folder, `${name.replaceAll(' ', '-')}.key`)
    if (text !== undefined) {
      writeFileSync(file, text)
      chmodSync(file, mode)
    }
    const error = await openVaultKeys(file).then(
      () => undefined,
      (failure: unknown) => failure as Error,
    )
    expect(error?.message).toMatch(says)
    expect(error?.message).toContain('SERVICE_VAULT_KEY_FILE')
    for (const line of text?.split('\n').filter((word) => /^\w{10}/.test(word)) ?? [])
      expect(error?.message).not.toContain(line)
  })

  test('that is rotated serves a running program: it seals with the new key and opens with the old', async () => {
    const file = join(folder, 'rotated.key')
    await ensureKeyFile(file)
    const running = await openVaultKeys(file)
    const old = await running.primary()
    const next = makeKey()
    await replaceKeys(file, [next, old])
    expect(statSync(file).mode & 0o777).toBe(0o600)
    expect((await running.find(next.id))?.id).toBe(next.id)
    expect((await running.primary()).id).toBe(next.id)
    expect((await running.find(old.id))?.id).toBe(old.id)
    expect(await running.find('0000000000000000')).toBeUndefined()
    // A file that is away for a moment takes nothing.
    rmSync(file)
    expect((await running.primary()).id).toBe(next.id)
  })

  test('that is rotated stays behind its link, and with its owner', async () => {
    const [kept, file] = [join(folder, 'kept.key'), join(folder, 'linked.key')]
    await ensureKeyFile(kept)
    symlinkSync(kept, file)
    // Root may rotate the keys of a service of another account.
    const owner = process.getuid?.() === 0 ? 65_534 : statSync(kept).uid
    chownSync(kept, owner, statSync(kept).gid)
    const next = makeKey()
    await replaceKeys(file, [next])
    expect(lstatSync(file).isSymbolicLink()).toBe(true)
    expect(statSync(kept)).toMatchObject({ uid: owner, mode: 0o100_600 })
    expect((await (await openVaultKeys(kept)).primary()).id).toBe(next.id)
  })
})

describe('the payload codec', () => {
  const held = [key, other]
  const keys = {
    file: 'key-file',
    refresh: async () => undefined,
    primary: async () => key,
    find: async (id: string) => held.find((one) => one.id === id),
    all: async () => held,
  }
  const codec = payloadCodec(keys)
  const bytes = fc.uint8Array({ maxLength: 500 })
  const payload = fc.record(
    {
      metadata: fc.dictionary(
        fc.string({ minLength: 1 }).filter((name) => name !== '__proto__'),
        bytes,
      ),
      data: bytes,
    },
    { requiredKeys: ['metadata', 'data'] },
  )
  const contentOf = ({
    metadata,
    data,
  }: {
    metadata?: Record<string, Uint8Array> | null
    data?: Uint8Array | null
  }) => ({
    metadata: Object.fromEntries(
      Object.entries(metadata ?? {}).map(([name, value]) => [name, Buffer.from(value).toString('hex')]),
    ),
    data: Buffer.from(data ?? []).toString('hex'),
  })

  test('gives back what it was given, in order, and shows nothing of it', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(payload, { maxLength: 4 }), async (payloads) => {
        const encrypted = await codec.encode(payloads)
        for (const [i, one] of encrypted.entries()) {
          expect(Buffer.from(one.metadata?.['encoding'] ?? []).toString()).toBe('binary/encrypted')
          const data = Buffer.from(payloads[i]?.data ?? [])
          if (data.length >= 8) expect(Buffer.from(one.data ?? []).includes(data)).toBe(false)
        }
        expect((await codec.decode(encrypted)).map(contentOf)).toEqual(payloads.map(contentOf))
      }),
    )
  })

  test('reads what was written before there was a key', async () => {
    const before = { metadata: { encoding: Buffer.from('json/plain') }, data: Buffer.from('{"id":1}') }
    expect(await codec.decode([before])).toEqual([before])
  })

  test('reads what an older key of the file wrote, and names a key that the file does not hold', async () => {
    const [written] = await payloadCodec({ ...keys, primary: async () => other }).encode([
      { metadata: {}, data: Buffer.from('old') },
    ])
    expect(contentOf((await codec.decode([written!]))[0]!).data).toBe(Buffer.from('old').toString('hex'))
    const [foreign] = await payloadCodec({ ...keys, primary: async () => makeKey() }).encode([
      { metadata: {}, data: Buffer.from('old') },
    ])
    await expect(codec.decode([foreign!])).rejects.toThrow(/which key-file does not hold/)
  })

  test('refuses a payload with another bit anywhere', async () => {
    const [written] = await codec.encode([
      { metadata: { encoding: Buffer.from('json/plain') }, data: Buffer.from('"x"') },
    ])
    await fc.assert(
      fc.asyncProperty(fc.nat((written!.data as Uint8Array).length * 8 - 1), async (bit) => {
        const data = Buffer.from(written!.data as Uint8Array)
        data[bit >> 3] = (data[bit >> 3] ?? 0) ^ (1 << (bit & 7))
        await expect(codec.decode([{ ...written!, data }])).rejects.toThrow(SealBroken)
      }),
    )
  })
})

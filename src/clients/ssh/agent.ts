import { Duplex } from 'node:stream'
import ssh2, {
  type GetStreamCallback,
  type IdentityCallback,
  type ParsedKey,
  type SignCallback,
  type SigningRequestOptions,
} from 'ssh2'
import { field } from './keys.ts'

const longestRequest = 256 * 1024

/**
 * An SSH agent inside this process that holds one key: programs at a site request signatures over
 * the connection and never see the key.
 */
export class KeyAgent extends ssh2.BaseAgent<ParsedKey> {
  readonly #key: ParsedKey
  constructor(key: ParsedKey) {
    super()
    this.#key = key
  }

  override getIdentities(callback: IdentityCallback<ParsedKey>): void {
    callback(null, [this.#key])
  }

  override sign(
    _key: ParsedKey,
    data: Buffer,
    options: SigningRequestOptions | SignCallback,
    callback?: SignCallback,
  ): void {
    const [hash, answer] = typeof options === 'function' ? [undefined, options] : [options.hash, callback]
    const signature = this.#signature(data, hash)
    if (signature instanceof Error) answer?.(signature)
    else answer?.(null, signature)
  }

  /**
   * A connection of a program at the site (draft-miller-ssh-agent). ssh2's own server loses its
   * position in the bytes at an unknown request, such as OpenSSH's `session-bind@openssh.com`,
   * which comes first. It answers no faster than the program reads.
   */
  override getStream(callback: GetStreamCallback): void {
    let held: Buffer = Buffer.alloc(0)
    /** Answers what is held, once the earlier answers are read. */
    let goOn: (() => void) | undefined
    const side = new Duplex({
      read: () => {
        const next = goOn
        goOn = undefined
        next?.()
      },
      write: (chunk: Buffer, _encoding, done) => {
        held = Buffer.concat([held, chunk])
        const answerHeld = (): void => {
          while (held.length >= 4 && held.length >= 4 + held.readUInt32BE(0)) {
            const size = held.readUInt32BE(0)
            const request = held.subarray(4, 4 + size)
            held = held.subarray(4 + size)
            if (side.push(field(this.#answer(request)))) continue
            goOn = answerHeld
            return
          }
          done(held.length > longestRequest ? new Error('an agent request is too long') : null)
        }
        answerHeld()
      },
      final: (done) => {
        side.push(null)
        done()
      },
    })
    side.on('error', () => undefined)
    callback(null, side)
  }

  #answer(request: Buffer): Buffer {
    const failure = Buffer.from([5])
    const own = this.#key.getPublicSSH()
    if (request[0] === 11)
      return Buffer.concat([Buffer.from([12, 0, 0, 0, 1]), field(own), field(Buffer.alloc(0))])
    if (request[0] !== 13) return failure
    try {
      const size = request.readUInt32BE(1)
      const key = request.subarray(5, 5 + size)
      const length = request.readUInt32BE(5 + size)
      const data = request.subarray(9 + size, 9 + size + length)
      const flags = request.readUInt32BE(9 + size + length)
      if (!key.equals(own)) return failure
      const rsa = this.#key.type === 'ssh-rsa'
      const hash = !rsa ? undefined : (flags & 4) !== 0 ? 'sha512' : (flags & 2) !== 0 ? 'sha256' : 'sha1'
      const signature = this.#signature(data, hash)
      if (signature instanceof Error) return failure
      const format = rsa && hash !== 'sha1' ? `rsa-sha2-${hash!.slice(3)}` : this.#key.type
      return Buffer.concat([
        Buffer.from([14]),
        field(Buffer.concat([field(Buffer.from(format)), field(signature)])),
      ])
    } catch (error) {
      if (error instanceof RangeError) return failure
      throw error
    }
  }

  #signature(data: Buffer, hash: string | undefined): Buffer | Error {
    const signature = this.#key.sign(data, hash) as Buffer | Error
    return signature instanceof Error || !this.#key.type.startsWith('ecdsa-')
      ? signature
      : wireForm(signature)
  }
}

/**
 * An ECDSA signature in SSH's form: the two numbers of its DER form (`30 len 02 len r 02 len s`),
 * each with its length. RFC 5656, 3.1.2.
 */
const wireForm = (der: Buffer): Buffer => {
  // The sequence's length takes two bytes where it is 128 or more (P-521).
  let at = der[1]! >= 0x80 ? 3 : 2
  return Buffer.concat(
    [0, 1].map(() => {
      const length = der[at + 1]!
      const number = der.subarray(at + 2, at + 2 + length)
      at += 2 + length
      return field(number)
    }),
  )
}

import ssh2, { type GetStreamCallback, type IdentityCallback, type ParsedKey, type SignCallback, type SigningRequestOptions } from 'ssh2'

/** An SSH agent inside this process that holds one key: programs at a site sign with it over the connection and never see it. */
export class KeyAgent extends ssh2.BaseAgent<ParsedKey> {
  readonly #key: ParsedKey
  constructor(key: ParsedKey) {
    super()
    this.#key = key
  }

  override getIdentities(callback: IdentityCallback<ParsedKey>): void {
    callback(null, [this.#key])
  }

  override sign(_key: ParsedKey, data: Buffer, options: SigningRequestOptions | SignCallback, callback?: SignCallback): void {
    const [hash, answer] = typeof options === 'function' ? [undefined, options] : [options.hash, callback]
    const signature = this.#signature(data, hash)
    if (signature instanceof Error) answer?.(signature)
    else answer?.(null, signature)
  }

  /** A connection of a program at the site. */
  override getStream(callback: GetStreamCallback): void {
    const side = new ssh2.AgentProtocol(false)
    side.on('identities', (request) => side.getIdentitiesReply(request, [this.#key]))
    side.on('sign', (request, key, data, options) => {
      const signature = key.getPublicSSH().equals(this.#key.getPublicSSH()) ? this.#signature(data, options.hash) : undefined
      if (signature === undefined || signature instanceof Error) side.failureReply(request)
      else side.signReply(request, signature)
    })
    callback(null, side)
  }

  #signature(data: Buffer, hash: string | undefined): Buffer | Error {
    const signature = this.#key.sign(data, hash) as Buffer | Error
    return signature instanceof Error || !this.#key.type.startsWith('ecdsa-') ? signature : wireForm(signature)
  }
}

/** An ECDSA signature as SSH has it: the two numbers of its DER form (`30 len 02 len r 02 len s`), each with its length. RFC 5656, 3.1.2. */
const wireForm = (der: Buffer): Buffer => {
  // The sequence's length takes two bytes where it is 128 or more (P-521).
  let at = der[1]! >= 0x80 ? 3 : 2
  return Buffer.concat(
    [0, 1].map(() => {
      const length = der[at + 1]!
      const number = der.subarray(at + 2, at + 2 + length)
      at += 2 + length
      const size = Buffer.alloc(4)
      size.writeUInt32BE(length)
      return Buffer.concat([size, number])
    }),
  )
}

/** What a credential holds, opened. It lives in memory as long as a client needs it and is never put into a row, a log, an error or a history. */
export type Secret =
  /** OpenSSH text without passphrase. */
  | { kind: 'ssh-key'; privateKey: string }
  | { kind: 'kubernetes-token'; token: string }
  | { kind: 'cloud-credential'; provider: 'gcp' | 'aws' | 'azure'; document: Readonly<Record<string, unknown>> }

export type SecretKind = Secret['kind']

/** Opens what a reference names (`vault:…`; `env:…`, `file:…` and `cloud-file:…` where the configuration allows them). Every use is audited: who, for what. */
export interface SecretOpener {
  /**
   * @throws Refusal `unacceptable` naming the reference when it names nothing, is not allowed, or cannot be read; `unavailable` while the vault's key
   * file lacks the key of the record.
   */
  open(reference: string, use: { actor: string; purpose: string; environmentId?: string; connectionId?: string }): Promise<Secret>
}

/** Tells of a reference what needs no opening. */
export interface SecretFinder {
  /**
   * `version` changes with the secret's content and tells nothing of it; with the reference it names one login.
   * @throws Refusal as `open` does
   */
  look(reference: string): Promise<{ kind: SecretKind; version: string }>
}

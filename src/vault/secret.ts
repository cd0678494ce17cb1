/**
 * The opened content of a credential. It stays in memory as long as a client needs it and never
 * enters a row, a log, an error or a history.
 */
export type Secret =
  /** OpenSSH text without passphrase. */
  | { kind: 'ssh-key'; privateKey: string }
  | { kind: 'kubernetes-token'; token: string }
  | {
      kind: 'cloud-credential'
      provider: 'gcp' | 'aws' | 'azure'
      document: Readonly<Record<string, unknown>>
    }
  /** The service's own, in PEM. */
  | { kind: 'signing-key'; privateKey: string }
  /** `registry`: host, with its port where it has one. */
  | { kind: 'registry-credential'; registry: string; username: string; password: string }
  /** Secret variables of the playbooks of a capacity target, by the JSON text of their paths. */
  | { kind: 'machine-variables'; values: Readonly<Record<string, string | number>> }

export type SecretKind = Secret['kind']

/**
 * Opens the secret that a reference names (`vault:…`; `env:…`, `file:…` and `cloud-file:…` where
 * the configuration allows them). Every use is audited: the actor and the purpose.
 */
export interface SecretOpener {
  /**
   * @throws Refusal `unacceptable` naming the reference when it names nothing, is not allowed, or
   *   cannot be read; `unavailable` while the vault's key file lacks the key of the record.
   */
  open(
    reference: string,
    use: { actor: string; purpose: string; environmentId?: string; connectionId?: string },
  ): Promise<Secret>
}

/** Finds facts about a reference without opening it. */
export interface SecretFinder {
  /**
   * `version` changes with the secret's content and reveals nothing of it; with the reference it
   * names one login.
   * @throws Refusal as `open` does
   */
  look(reference: string): Promise<{ kind: SecretKind; version: string }>
}

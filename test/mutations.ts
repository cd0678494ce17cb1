/** A fault that is put into the code: the named gate files have to find it. */
export interface SourceMutation {
  name: string
  /** Path below the checkout. */
  file: string
  /** Must occur exactly once in the file. */
  replace: string
  by: string
  /** Files below `test/`, without `.test.ts`. */
  tests: readonly string[]
}

/** Over all domains and layers: checks left out, rules inverted, locks and digests not compared. */
export const sourceMutations: readonly SourceMutation[] = [
  {
    name: 'every address that begins with 1 counts as this machine',
    file: 'src/http/access.ts',
    replace: "plain.startsWith('127.')",
    by: "plain.startsWith('1')",
    tests: ['http/access'],
  },
  {
    name: 'a change under If-Match of another version is made',
    file: 'src/http/conditional.ts',
    replace: '!tags(ifMatch).map(part).includes(part(current))',
    by: 'false',
    tests: ['api/whole-headers'],
  },
  {
    name: 'a page is as long as the client asks',
    file: 'src/http/paging.ts',
    replace: 'asked > sizes.largest ? large : asked',
    by: 'asked',
    tests: ['http/paging'],
  },
  {
    name: 'an Idempotency-Key answers another body with the first answer',
    file: 'src/http/idempotency.ts',
    replace: "if (found === 'mismatch')",
    by: 'if (found === undefined)',
    tests: ['http/kernel', 'api/whole-headers'],
  },
  {
    name: 'a sealed secret opens under any id',
    file: 'src/vault/envelope.ts',
    replace: '[part, kind, id, version]',
    by: '[part, kind, version]',
    tests: ['vault/envelope'],
  },
  {
    name: 'an IPv6 address that stands for a denied IPv4 address is allowed',
    file: 'src/clients/denied-networks.ts',
    replace: '[bare, ...embedded(bare)]',
    by: '[bare]',
    tests: ['api/environment-connections-addresses'],
  },
  {
    name: 'a revoked host key is judged like any other',
    file: 'src/clients/ssh/known-hosts.ts',
    replace:
      "if (lines.some((line) => line.mark === 'revoked' && line.key.equals(key))) return { verdict: 'revoked' }",
    by: '',
    tests: ['clients/known-hosts'],
  },
  {
    name: 'audit records are not chained',
    file: 'src/domains/audit-events/sealer.ts',
    replace: 'seal = sealOf(key, seal, ++number',
    by: "seal = sealOf(key, '', ++number",
    tests: ['api/audit-chain'],
  },
  {
    name: 'a site whose lease has passed on still commits',
    file: 'src/db/functions/commit_site.sql',
    replace: 'and l.site = p_site and l.epoch = p_epoch for update',
    by: 'and l.site = p_site for update',
    tests: ['executor/journal', 'executor/model-db'],
  },
  {
    name: 'an activity has one attempt more than its policy allows',
    file: 'src/executor/attempt.ts',
    replace: 'task.user_attempts >= (policy?.maxAttempts ?? 1)',
    by: 'task.user_attempts > (policy?.maxAttempts ?? 1)',
    tests: ['executor/attempt'],
  },
  {
    name: 'an activity starts before its last predecessor has ended',
    file: 'src/executor/frontier.ts',
    replace: 'if (needs[next] !== 0 || states[next] !== waiting) return',
    by: 'if (states[next] !== waiting) return',
    tests: ['executor/frontier'],
  },
  {
    name: 'the planner uses no gap between tasks',
    file: 'src/schedulers/lane.ts',
    replace: 'if (this.#longest >= seconds) {',
    by: 'if (this.#longest < 0) {',
    tests: ['schedulers/lane'],
  },
  {
    name: 'two assignments with one order on a lane are taken',
    file: 'src/schedulers/validate.ts',
    replace: 'else if (!clashes.has(`${path} ${earlier.assignment}`)) {',
    by: 'else if (clashes.has(`${path} ${earlier.assignment}`)) {',
    tests: ['schedulers/validate', 'api/schedule-plans'],
  },
  {
    name: 'the simulator gives flows more than a link carries',
    file: 'src/simulator/fair-share.ts',
    replace: 'level = Math.min(level, this.#levelOf(capacity))',
    by: 'level = Math.min(level, 2 * this.#levelOf(capacity))',
    tests: ['simulator/simulate'],
  },
  {
    name: 'a link that leads out of the work directory is staged',
    file: 'src/drivers/runtime/contract/links.ts',
    replace: "if (lead.leads === 'outside') return undefined",
    by: "if (lead.leads === 'outside') return target",
    tests: ['drivers/remote', 'drivers/ssh-odd'],
  },
  {
    name: 'a secret that is printed stays in the record of a terminal',
    file: 'src/domains/console/masks.ts',
    replace: 'const needles = needlesOf(secrets)',
    by: 'const needles = needlesOf([])',
    tests: ['console/masks'],
  },
  {
    name: 'a statement of provenance calls any function',
    file: 'src/domains/provenance/statement.ts',
    replace: 'if (!functions.has(name)) refuse(',
    by: "if (name === '') refuse(",
    tests: ['provenance/statements'],
  },
  {
    name: 'a build context is registered with any size',
    file: 'src/domains/artifacts/contexts.ts',
    replace: 'if (sizeBytes !== given.sizeBytes)',
    by: 'if (sizeBytes === -1)',
    tests: ['artifacts/specifications'],
  },
  {
    name: 'a cloud target takes more instances than its maximum',
    file: 'src/domains/cloud/accept.ts',
    replace: 'if (living < maximumInstances) return',
    by: 'if (living < 1e9) return',
    tests: ['api/whole-bad-input'],
  },
  {
    name: 'a credential that connections use is deleted',
    file: 'src/domains/credentials/store.ts',
    replace: 'if (using.length > 0)',
    by: 'if (using.length > 1e9)',
    tests: ['api/credentials'],
  },
  {
    name: 'an operation that has ended ends again',
    file: 'src/operations/records.ts',
    replace:
      "${column(kind, 'failure_reason')} = ${reason ?? null} where ${isRef(kind, of)} and ${isOpenSql(kind)}`)",
    by: "${column(kind, 'failure_reason')} = ${reason ?? null} where ${isRef(kind, of)}`)",
    tests: ['operations/operations', 'workflows/planning-session'],
  },
  {
    name: 'an import does not compare the digests of an archive',
    file: 'src/domains/instance/archives/import.ts',
    replace: 'if (found !== digest ||',
    by: 'if (',
    tests: ['archives/archives'],
  },
  {
    name: 'a copy does not compare what it wrote with what it read',
    file: 'src/domains/storages/send.ts',
    replace: 'one.etag === etag && one.sizeBytes === sizeBytes',
    by: 'one.sizeBytes >= 0',
    tests: ['storages/copies'],
  },
  {
    name: 'payloads of workflows are stored as they are',
    file: 'src/vault/payload-codec.ts',
    replace:
      'data: Buffer.concat([salt, locking.update(packed(payload)), locking.final(), locking.getAuthTag()])',
    by: 'data: Buffer.concat([salt, packed(payload), locking.final(), locking.getAuthTag()])',
    tests: ['vault/temporal-codec', 'vault/encrypted-histories'],
  },
]

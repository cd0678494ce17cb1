import { hash } from 'node:crypto'
import { createYamlReader } from '../../http/yaml-reader.ts'
import { openGate } from '../../pacing/gate.ts'
import { Refusal, type Problem } from '../../refusal.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import { playbookFindings } from './playbook-rules.ts'
import { syntaxError } from './syntax-check.ts'

/** The limit of one playbook. */
const mostBytes = 1_048_576
/** The limit of findings in one answer. */
const mostFindings = 100
/** Each check is a process of about a second. */
const checksAtOnce = 2

/** `sha256:` and the hash of the trimmed text. */
const hashOf = (playbookYaml: string): string => `sha256:${hash('sha256', playbookYaml.trim())}`

/** The line of a path, or of the nearest place around it. */
const lineAt = (lines: ReadonlyMap<string, number> | undefined, path: string): number => {
  for (let at = path; at !== ''; at = at.slice(0, Math.max(0, at.lastIndexOf('.')))) {
    const line = lines?.get(at)
    if (line !== undefined) return line
  }
  return 1
}

const worded = (lines: ReadonlyMap<string, number> | undefined, { path, message }: Problem): string =>
  /^line \d+/.test(message)
    ? message
    : `line ${String(lineAt(lines, path))}: ${path === '' ? '' : `${path}: `}${message}`

export interface Playbooks {
  /**
   * The hash of a playbook that passes all checks.
   * @throws Refusal 422 with every error and its line; 503 where a program for the check is missing
   */
  accept(playbookYaml: string): Promise<string>
}

/** Checks playbooks: first by the service's rules, then with ansible-playbook inside a sandbox. */
export const openPlaybooks = (shell: SiteShell): Playbooks => {
  const readYaml = createYamlReader()
  const gate = openGate(checksAtOnce)

  const errorsOf = async (playbookYaml: string): Promise<string[]> => {
    if (Buffer.byteLength(playbookYaml) > mostBytes)
      return [`line 1: the playbook has more than ${String(mostBytes)} bytes; take data out of it`]
    if (playbookYaml.trim() === '') return ['line 1: the playbook is empty; write at least one play']
    if (playbookYaml.includes('\0')) return ['line 1: the playbook holds a NUL character; take it out']
    const { value, problems, lines } = await readYaml(playbookYaml, { lines: true })
    if (problems.length > 0) return problems.map((problem) => worded(lines, problem))
    const findings = playbookFindings(value)
    if (findings.length > 0) return findings.map((finding) => worded(lines, finding))
    const error = await gate.inTurn(() => syntaxError(shell, playbookYaml))
    return error === undefined ? [] : [`line ${String(error.line)}: ${error.message}`]
  }

  return {
    async accept(playbookYaml) {
      const sha256 = hashOf(playbookYaml)
      const errors = (await errorsOf(playbookYaml)).slice(0, mostFindings)
      if (errors.length === 0) return sha256
      const more = errors.length === 1 ? '' : ` (and ${String(errors.length - 1)} more, see errors)`
      throw new Refusal('unacceptable', `playbookYaml: ${errors[0] ?? ''}${more}`, {
        details: errors.map((message) => ({ path: 'playbookYaml', message })),
        extra: { valid: false, sha256, errors },
      })
    },
  }
}

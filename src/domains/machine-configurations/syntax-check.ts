import { ansiblePlaybook, sandbox } from '../../drivers/ansible/sandbox.ts'
import type { SiteShell } from '../../shell/site-shell.ts'
import { Refusal } from '../../refusal.ts'
import { quoteAll } from '../../shell/quote.ts'

/** The limit of one check: ansible-playbook takes about a second. */
const deadlineMs = 30_000
const missingSandbox = 96
const missingAnsible = 97
const sandboxFailed = 98

/** The playbook arrives on standard input. */
const check = [
  ...sandbox,
  '--ro-bind-data',
  '0',
  '/play/playbook.yml',
  ansiblePlaybook,
  '--syntax-check',
  '-i',
  'machine,',
  'playbook.yml',
]
const script = `command -v bwrap >/dev/null || exit ${String(missingSandbox)}
test -x ${ansiblePlaybook} || exit ${String(missingAnsible)}
ulimit -t 20
${quoteAll([...sandbox, '/usr/bin/true'])} </dev/null || exit ${String(sandboxFailed)}
${quoteAll(check)}`

const absent = (program: string, debian: string): Refusal =>
  new Refusal(
    'unavailable',
    `playbooks cannot be checked: the program ${program} is not installed on this machine; install ` +
      `the Debian package ${debian}`,
    { retryAfterSeconds: 300 },
  )

const tidy = (text: string): string =>
  text
    .replaceAll(/\n?The offending line appears to be:[\s\S]*/g, '')
    .replaceAll(/\n?The error appears to be in [\s\S]*?(\n\n|$)/g, '')
    .replaceAll(/\s+/g, ' ')
    .slice(0, 1_000)
    .trim()

export interface SyntaxError {
  line: number
  message: string
}

/**
 * The error of `ansible-playbook --syntax-check` in a playbook, run inside bubblewrap; undefined
 * where it finds none.
 * @throws Refusal `unavailable` naming the program that is missing, or where the check gets no
 *   answer
 */
export const syntaxError = async (
  shell: SiteShell,
  playbookYaml: string,
): Promise<SyntaxError | undefined> => {
  const { code, stdout, stderr } = await shell
    .run(script, { input: playbookYaml, deadlineMs, maxBytes: 1_048_576 })
    .catch((error: unknown) => {
      throw new Refusal(
        'unavailable',
        `the playbook's check got no answer within ${String(deadlineMs / 1_000)} s; try again`,
        {
          retryAfterSeconds: 30,
          cause: error,
        },
      )
    })
  if (code === 0) return undefined
  if (code === missingSandbox) throw absent('bwrap', 'bubblewrap')
  if (code === missingAnsible) throw absent('ansible-playbook', 'ansible-core')
  if (code === sandboxFailed || code === null)
    throw new Refusal(
      'unavailable',
      'playbooks cannot be checked: bwrap makes no namespaces here; let this account make user namespaces',
      {
        retryAfterSeconds: 300,
        cause: new Error(stderr),
      },
    )
  const text = /ERROR! ([\s\S]*)/.exec(`${stderr}\n${stdout.toString()}`)?.[1] ?? stderr
  return {
    line: Number(/line (\d+), column/.exec(text)?.[1] ?? 1),
    message: tidy(text) || 'ansible-playbook takes it for no playbook',
  }
}

import { startBubblewrap } from '../bubblewrap.ts'
import { hasProgram, isProgram, programPath } from '../machine-programs.ts'

const mebibyte = 1_048_576

/**
 * The sandbox of `ansible-playbook`: a read-only /usr, an empty home, no network, no other
 * processes, no rights, and no file or variable of the service. Its files are in memory and
 * end with it.
 */
export const sandbox: readonly string[] = [
  ...['bwrap', '--unshare-all', '--die-with-parent', '--clearenv', '--cap-drop', 'ALL'],
  ...['--ro-bind', '/usr', '/usr', '--symlink', 'usr/bin', '/bin', '--symlink', 'usr/sbin', '/sbin'],
  ...['--symlink', 'usr/lib', '/lib', '--symlink', 'usr/lib64', '/lib64', '--proc', '/proc'],
  ...['--dev', '/dev', '--size', String(16 * mebibyte), '--tmpfs', '/dev/shm'],
  ...['--size', String(256 * mebibyte), '--tmpfs', '/tmp'],
  ...['--size', String(64 * mebibyte), '--tmpfs', '/home/ansible', '--dir', '/play', '--chdir', '/play'],
  ...['--hostname', 'ansible', '--setenv', 'HOME', '/home/ansible', '--setenv', 'PATH', '/usr/bin'],
  ...['--setenv', 'LC_ALL', 'C.UTF-8', '--setenv', 'ANSIBLE_NOCOLOR', '1'],
  ...['--setenv', 'ANSIBLE_LOCAL_TEMP', '/tmp/ansible'],
  ...['--setenv', 'ANSIBLE_LOCALHOST_WARNING', 'false'],
]

export const ansiblePlaybook = '/usr/bin/ansible-playbook'

/** A program that playbooks need, and the Debian package that has it. */
export interface MissingProgram {
  program: string
  package: string
}

/** The first program that playbooks need and this machine lacks. */
export const missingProgram = (): MissingProgram | undefined => {
  if (!hasProgram('bwrap')) return { program: 'bwrap', package: 'bubblewrap' }
  if (!isProgram(ansiblePlaybook)) return { program: 'ansible-playbook', package: 'ansible-core' }
  if (!isProgram('/usr/bin/ssh')) return { program: 'ssh', package: 'openssh-client' }
  return undefined
}

const longestWords = 500

/**
 * Makes an empty sandbox, because a program that is there may lack the right to make namespaces.
 * @returns the words of bubblewrap where it fails; undefined where the sandbox came up
 */
export const sandboxFault = (path: string = programPath): Promise<string | undefined> =>
  new Promise((resolve) => {
    const child = startBubblewrap([...sandbox.slice(1), '/usr/bin/true'], { path, timeoutMs: 30_000 })
    let words = ''
    child.stdout.resume()
    child.stderr.on('data', (bytes: Buffer) => {
      words = (words + bytes.toString()).slice(0, longestWords)
    })
    child.once('error', (error) => resolve(error.message))
    child.once('close', (code, signal) =>
      resolve(code === 0 ? undefined : words.trim() || `bwrap ended with ${String(code ?? signal)}`),
    )
  })

import type { Problem } from '../../refusal.ts'

interface CommandFields {
  entrypoint?: string | undefined
  arguments?: string[] | undefined
  environment?: Record<string, string> | undefined
}

/** Linux takes at most so many bytes as one argument or variable of a program (MAX_ARG_STRLEN). */
const argumentBytes = 128 * 1024 - 1
/**
 * Linux takes 2 MiB of arguments and variables together where the stack may have 8 MiB. The rest is
 * for the variables that a run adds.
 */
const commandBytes = 1_572_864
const pathBytes = 4_095

/** Whether a command is the long form of `run`. */
export const isScript = ({ entrypoint, arguments: args }: CommandFields): boolean =>
  entrypoint === 'sh' && args?.length === 2 && args[0] === '-c' && args[1] !== ''

/** A script as `sh` reads it. To `sh` a carriage return is a part of the word before it. */
export const withUnixEnds = (script: string): string => {
  const lines = (script.startsWith('\uFEFF') ? script.slice(1) : script).replaceAll('\r\n', '\n')
  return lines.endsWith('\r') ? lines.slice(0, -1) : lines
}

/**
 * Why no site could start a command: texts that are longer than Linux takes, at their paths from
 * `command` on.
 */
export const commandProblems = (command: CommandFields): Problem[] => {
  const { entrypoint = '', arguments: args = [], environment = {} } = command
  const problems: Problem[] = []
  const tell = (path: string, text: string, most: number, what: string, remedy: string): number => {
    const bytes = Buffer.byteLength(text)
    if (bytes > most)
      problems.push({ path, message: `has ${bytes} bytes; Linux takes at most ${most} ${what}: ${remedy}` })
    return bytes + 1
  }
  const script = isScript(command)
  const sizes = [
    tell('command.entrypoint', entrypoint, pathBytes, 'of a path', 'give a shorter one'),
    ...args.map((text, i) =>
      script
        ? Buffer.byteLength(text) + 1
        : tell(
            `command.arguments.${i}`,
            text,
            argumentBytes,
            'as an argument',
            'give it as a file, or a script as run',
          ),
    ),
    ...Object.entries(environment).map(([name, value]) =>
      tell(
        `command.environment.${name.slice(0, 255)}`,
        `${name}=${value}`,
        argumentBytes,
        'as a variable with its name',
        'give it as a file',
      ),
    ),
  ]
  const total = sizes.reduce((sum, size) => sum + size, 0)
  if (total > commandBytes)
    problems.push({
      path: script ? 'command.arguments.1' : 'command',
      message:
        `the command with its arguments and variables has ${total} bytes; at most ${commandBytes} can be ` +
        'started: give a part of it as a file',
    })
  return problems
}

/** Variables of a command that no program can get, at their paths from `command` on. */
export const variableProblems = ({ environment = {} }: Pick<CommandFields, 'environment'>): Problem[] =>
  Object.keys(environment)
    .filter((name) => name === '' || name.includes('='))
    .map((name) => ({
      path: `command.environment.${name.slice(0, 255)}`,
      message: 'an environment variable needs a name without "="',
    }))

/** In UTF-16 code units: at most 120,000 bytes. */
const partLength = 40_000

const partsOf = (text: string): string[] => {
  const parts: string[] = []
  for (let at = 0; at < text.length;) {
    const end = at + partLength
    // A character of two units stays whole.
    const next = text.codePointAt(end - 1) ?? 0
    const cut = end < text.length && next > 0xffff ? end - 1 : end
    parts.push(text.slice(at, cut))
    at = cut
  }
  return parts
}

/**
 * The command that is started for a command: a script that is longer than one argument goes in
 * parts, which the shell joins before it reads them. The script finds no arguments, as without parts.
 */
export const startable = <Command extends CommandFields>(command: Command): Command => {
  const script = command.arguments?.[1] ?? ''
  if (!isScript(command) || Buffer.byteLength(script) <= argumentBytes) return command
  const parts = partsOf(script)
  const joined = parts.map((_, i) => `\${${i + 1}}`).join('')
  return { ...command, arguments: ['-c', `eval "shift ${parts.length}\n${joined}"`, 'sh', ...parts] }
}

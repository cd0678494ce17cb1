import { chmod } from 'node:fs/promises'
import { text } from 'node:stream/consumers'
import { hasProgram } from '../machine-programs.ts'
import { apptainerLack, emptyDefinition, outOf, runToEnd, startSandbox, watchDisk } from './apptainer.ts'
import { ownArchitecture } from './architecture.ts'
import { BuildError } from './errors.ts'
import { fileSystemAt } from './sif.ts'

/**
 * Verifies a SIF file by what is in it: its file system is read to its end, and Apptainer starts the
 * program `true` of the image. Both happen in the sandbox of definitions: no network, no mount and no
 * file of this machine, no rights, an end after a time.
 */

/** How an image was verified: by a program of it that ran, or by its parts alone. */
export type Verification = 'executed' | 'structural'

const limits = {
  ...{ readSeconds: 600, runSeconds: 60, imageBytes: 40 * 2 ** 30, freeBytes: 2 ** 30 },
} as const

/**
 * The code of the reading is a line of the output, so that its failure is not taken for one of the program.
 * Devices cannot be made there; unsquashfs says that by 2. The shell stays: without it Apptainer, started
 * by the first process of the sandbox, looks for its own files at a wrong place.
 */
const script = `exec 3>&1 1>/dev/null
rm -rf /out/* /out/.[!.]*
unsquashfs -quiet -no-progress -no-xattrs -offset ${String(fileSystemAt)} -dest /out/root /build/image.sif 3>&-
code=$?
echo "read $code" >&3
[ "$code" -eq 0 ] || [ "$code" -eq 2 ] || exit 0
apptainer -q exec --contain --cleanenv --no-home /out/root true 3>&-
exit $?
`

/** Apptainer's own end: it has no program to start, or cannot start any. */
const withoutProgram = /^FATAL: +"true": executable file not found/m
/** Apptainer's end where the image has the program and the kernel does not take it. */
const unfitProgram = /^FATAL: +(exec .* failed|failed to open .* for inspection)/m

const lastLine = (said: string): string => said.trim().split('\n').at(-1)?.slice(0, 400) ?? ''

/** Reads the errors of the sandbox; only their end is kept. */
const endOf = (stream: NodeJS.ReadableStream): (() => string) => {
  let kept = ''
  stream.on('data', (piece: Buffer) => (kept = (kept + piece.toString()).slice(-4_000)))
  return () => kept
}

const startedIn = async (folder: string, path: string, signal: AbortSignal) => {
  const out = await outOf(folder)
  signal.throwIfAborted()
  const { child, input, output, errors } = startSandbox({ out, given: { '/build/image.sif': path } }, script)
  let cutBy: { reason: string; ofProgram: boolean } | undefined
  const cut = (reason: string, ofProgram = false): void => {
    cutBy ??= { reason, ofProgram }
    child.kill('SIGKILL')
  }
  const abort = (): void => void child.kill('SIGKILL')
  signal.addEventListener('abort', abort, { once: true })
  input.on('error', () => undefined).end()
  const errorsEnd = endOf(errors)
  const late = (seconds: number, what: string, ofProgram: boolean) =>
    setTimeout(() => cut(`${what} did not end within ${String(seconds)} s`, ofProgram), seconds * 1_000)
  let timer = late(limits.readSeconds, 'the reading of its file system', false)
  output.once('data', () => {
    clearTimeout(timer)
    timer = late(limits.runSeconds, 'the program true of the image', true)
  })
  const watch = watchDisk(out, limits, cut)
  try {
    const [said, { code, error }] = await Promise.all([text(output), runToEnd(child)])
    signal.throwIfAborted()
    return { read: /^read (\d+)$/m.exec(said)?.[1], code, error, cutBy, errors: errorsEnd() }
  } finally {
    clearTimeout(timer)
    await watch.stop()
    signal.removeEventListener('abort', abort)
    child.kill('SIGKILL')
    await emptyDefinition(folder)
  }
}

/**
 * Has Apptainer start `true` of a SIF file.
 * @returns `structural` with the reason where this machine cannot, or the image has no such program
 * @throws BuildError where the file system cannot be read, or the program of the image fails; the
 *   signal's reason
 */
export const verifySif = async (
  folder: string,
  { path, architecture }: { path: string; architecture: string },
  signal: AbortSignal,
): Promise<{ verification: Verification; reason?: string }> => {
  const structural = (reason: string) => ({ verification: 'structural', reason }) as const
  const lack =
    apptainerLack() ??
    (hasProgram('unsquashfs') ? undefined : 'this host has no unsquashfs: install squashfs-tools')
  if (lack !== undefined) return structural(lack)
  if (architecture !== ownArchitecture())
    return structural(`this host runs ${ownArchitecture()}, and the image is for ${architecture}`)
  // Inside, an account without rights reads the file.
  await chmod(path, 0o644)
  const { read, code, error, cutBy, errors } = await startedIn(folder, path, signal)
  await chmod(path, 0o600)
  if (error !== undefined) return structural(`the sandbox does not start: ${error.message}`)
  if (cutBy?.ofProgram === true) throw new BuildError(cutBy.reason)
  if (cutBy !== undefined) return structural(cutBy.reason)
  if (read === undefined) return structural(`the sandbox does not start: ${lastLine(errors)}`)
  if (read !== '0' && read !== '2')
    throw new BuildError(`the file system of the image cannot be read: ${lastLine(errors)}`)
  if (code === 0) return { verification: 'executed' }
  if (withoutProgram.test(errors)) return structural('the image has no program true')
  if (code === 255 && errors.includes('FATAL:') && !unfitProgram.test(errors))
    return structural(`Apptainer starts no program here: ${lastLine(errors)}`)
  throw new BuildError(
    `the program true of the image ended with ${String(code)}: ${lastLine(errors)}; ` +
      'an image whose programs do not start is not published',
  )
}

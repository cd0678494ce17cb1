import { assign, call, readProgram } from '../../../../shell/program.ts'
import { quote } from '../../../../shell/quote.ts'
import { keepImage, toolsFolder } from '../job.ts'

/** Exit codes of the scripts in Pods. */
export const codes = { done: 0, already: 3, nothing: 4, notYet: 5 } as const

/** An hour in which a worker can fetch the outputs. */
const stayingSeconds = 3600

const program = (name: string): string => readProgram(import.meta.dirname, name)

/** Defines `link_tools FOLDER`. */
export const linkTools = program('link-tools.sh')
const pack = program('pack.sh')
const tidy = program('tidy.sh')
const unpack = program('unpack.sh')
const inPod = {
  install: program('install.sh'),
  wait: program('wait.sh'),
  stay: program('stay.sh'),
  receive: program('receive.sh'),
  start: program('start.sh'),
  send: program('send.sh'),
  release: program('release.sh'),
}
const inKeeper = {
  errands: program('errands.sh'),
  give: program('give.sh'),
  begin: program('begin.sh'),
  take: program('take.sh'),
  keep: program('keep.sh'),
  token: program('token.sh'),
}

/** The script of a Pod's first container. `busybox`: a static one of the helper image, or ''. */
export const installScript = (root: string, busybox: string): string =>
  `${assign({ ROOT: root, TOOLS: toolsFolder, BUSYBOX: busybox })}${linkTools}${inPod.install}`

/**
 * The first script of the task's container; `script`: the Job's, which `shell` runs once all has
 * been delivered.
 */
export const waitScript = (root: string, script: string, shell: string): string =>
  keepImage +
  assign({ ROOT: root, TOOLS: `${root}/${toolsFolder}`, SHELL_THERE: shell, SCRIPT: script }) +
  inPod.wait

/** The script of the courier. */
export const stayScript = (root: string): string =>
  `${assign({ ROOT: root, STAYING: stayingSeconds })}${inPod.stay}`

/** A script at the keeper, in the folder of the site's files. */
export const atKeeper = (root: string, script: string): string =>
  `umask 077\ncd ${quote(root)} || exit\nPATH=$PATH:${quote(`${root}/${toolsFolder}`)}\n${script}`

/** The folder of a try to carry files: `tries` names the worker, and the task where others have theirs. */
export interface Try {
  tries: string
  folder: string
}

/** In a Pod: receives files into the folder, after the removal of the worker's earlier tries. */
export const receiveScript = (root: string, { tries, folder }: Try): string => {
  const own = { ROOT: root, TRIES: tries, FOLDER: folder, ALREADY: codes.already }
  return `${assign(own)}${tidy}${inPod.receive}${unpack}`
}

/** At the keeper: sends a task's inputs. */
export const giveScript = (task: { script: string; job: string; directory: string }): string =>
  assign({ WRAPPERS: './bin/*/wrapper', SCRIPT: task.script, JOB: task.job, DIRECTORY: task.directory }) +
  pack +
  inKeeper.give

/** At the keeper: `record` is a line without the time. */
export const beginScript = (name: string, record: string): string =>
  `${assign({ NAME: name, RECORD: record })}${inKeeper.begin}`

/** In a Pod: lets the task start with the files in `folder`. */
export const startScript = (root: string, folder: string, directory: string): string =>
  `${assign({ ROOT: root, FOLDER: folder, DIRECTORY: directory })}${inPod.start}`

/**
 * In a Pod: sends a task's outputs back. `over`: the cluster reports that its container has ended.
 */
export const sendScript = (
  root: string,
  task: { name: string; directory: string; over: boolean },
): string => {
  const answers = { ALREADY: codes.already, NOTHING: codes.nothing, NOT_YET: codes.notYet }
  const own = { ROOT: root, NAME: task.name, DIRECTORY: task.directory, OVER: task.over ? '1' : '' }
  return `${assign({ ...own, ...answers })}${pack}${inPod.send}`
}

/** At the keeper: receives them into the folder, after the removal of the worker's earlier tries. */
export const takeScript = ({ tries, folder }: Try): string =>
  `${assign({ TRIES: tries, FOLDER: folder })}${tidy}${inKeeper.take}${unpack}`

/** At the keeper: removes the worker's tries. */
export const tidyScript = (tries: string): string => `${tidy}${call('tidy', 'courier.lock', tries)}`

/** At the keeper: moves the files in `folder` into place. */
export const keepScript = (folder: string, task: { name: string; directory: string }): string =>
  `${assign({ FOLDER: folder, NAME: task.name, DIRECTORY: task.directory })}${inKeeper.keep}`

/** In a Pod: the courier may leave. */
export const releaseScript = (root: string): string => `${assign({ ROOT: root })}${inPod.release}`

/** At the keeper: finds the tasks of these Pods; places are `JOB/INDEX`. */
export const errandsScript = (places: readonly string[]): string =>
  `sees() {\n${places.map((place) => call('see', ...place.split('/'))).join('\n')}\n}\n${inKeeper.errands}`

/** At the keeper: the name of its set of files; `fresh` where they have none. */
export const tokenScript = (fresh: string): string => `${assign({ TOKEN: fresh })}${inKeeper.token}`

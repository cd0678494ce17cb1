import { parentPort, workerData } from 'node:worker_threads'
import { parseYaml } from './yaml.ts'

// yaml-reader.ts starts this thread with one text. It ends after its answer.
const { text, options } = workerData as { text: string; options: { lines?: boolean } }
parentPort?.postMessage(parseYaml(text, options))

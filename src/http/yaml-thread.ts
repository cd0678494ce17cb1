import { parentPort, workerData } from 'node:worker_threads'
import { parseYaml } from './yaml.ts'

// Started by yaml-reader.ts with one text; ends after its answer.
parentPort?.postMessage(parseYaml(String(workerData)))

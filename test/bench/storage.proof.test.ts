import { test } from '@jest/globals'
import { tinyRound } from './bench.ts'

test('index-runs works', () => tinyRound('index-runs'), 300_000)
test('storage-checksums works', () => tinyRound('storage-checksums'), 300_000)
test('storage-directories works', () => tinyRound('storage-directories'), 300_000)

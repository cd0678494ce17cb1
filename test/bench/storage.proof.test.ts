import { test } from '@jest/globals'
import { tinyRound } from './bench.ts'

test.each([
  ...['index-runs', 'storage-checksums', 'storage-directories', 'storage-archives'],
  ...['copies-ssh', 'copies-s3', 'copies-many', 'copies-cut'],
])('%s works', (name) => tinyRound(name), 300_000)

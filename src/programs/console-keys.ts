/** The meaning of keys for the console's program. */
export interface Keys {
  /** Goes to the terminal. */
  input: string
  /** The user typed `~.`: the program ends, the session stays. */
  leaves: boolean
}

/**
 * Reads keys as ssh does: `~.` at the beginning of a line leaves, `~~` there is one `~`, and
 * everything else is input. Keys come in pieces of any size; a possible beginning of `~.` waits for
 * the next piece.
 */
export const openKeys = (): ((piece: string) => Keys) => {
  let state: 'line' | 'tilde' | 'text' = 'line'
  return (piece) => {
    let input = ''
    for (const key of piece) {
      if (state === 'tilde') {
        if (key === '.') return { input, leaves: true }
        input += key === '~' ? '~' : `~${key}`
        state = key === '\r' || key === '\n' ? 'line' : 'text'
      } else if (state === 'line' && key === '~') state = 'tilde'
      else {
        input += key
        state = key === '\r' || key === '\n' ? 'line' : 'text'
      }
    }
    return { input, leaves: false }
  }
}
